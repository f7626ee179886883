"""Secrets stay where they belong: what opens something is in no table, log, file, socket, export, answer or argument.

A real installation is given canaries: passwords, tokens, sign-in links, an Atropos address, keys of services in its
environment. They are used well and badly, a run trains, and then they are looked for everywhere.
"""

import contextlib
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import psycopg
import pytest
import redis
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests import chat_server
from tests.chat_server import Reply, completion
from tests.e2e.canary import Canary, Search
from tests.e2e.yard import Yard, make_tiny_model, running_yard, until
from tests.moving import content_of, files_below
from tests.rollouts import story
from workers.launchers import confinement

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

CONTROL_PLANE = "environment of *controlplane*"
"""Our own processes. They fetch from the hub for runs, and run nobody's code."""
ECHO = "the sender's own address, in a form or a redirection that leads back to it"
TRAINS = ["max_steps=2", "optimizer.warmup_steps=1", "data.batch_size=8", "register_as="]


class Person:
    """Somebody with a browser of their own; whatever they are sent is looked through."""

    def __init__(self, story: "Story") -> None:
        self.story = story
        self.http = httpx.Client(base_url=story.yard.url, timeout=30, event_hooks={"response": [self._keep]})

    def _keep(self, response: httpx.Response) -> None:
        place = f"the answer to {response.request.method} {response.url.path[:40]}"
        self.story.keep(place, response.read())
        for name, value in response.headers.multi_items():
            self.story.keep("a cookie" if name == "set-cookie" else place, f"{name}: {value}")

    def post(self, path: str, **fields: str) -> httpx.Response:
        """Send a form as its page would."""
        self.http.get(path)
        fields |= {"csrfmiddlewaretoken": self.http.cookies.get("rollyard_csrf", "")}
        return self.http.post(path, data=fields)

    @property
    def cookie(self) -> str:
        return self.http.cookies.get("rollyard_session", "")

    def socket(self, *, query: str = "", headers: dict[str, str] | None = None, frames: tuple[str, ...] = ()) -> None:
        """Open a socket, send something, and take what comes."""
        address = f"{self.story.yard.url.replace('http', 'ws')}/ws/{query}"
        own = {"Origin": self.story.yard.url, "Cookie": f"rollyard_session={self.cookie}", **(headers or {})}
        with (
            contextlib.suppress(ConnectionClosed, InvalidStatus, TimeoutError),
            connect(address, additional_headers=own, origin=None, open_timeout=10) as socket,
        ):
            for frame in frames:
                socket.send(frame)
                self.story.keep("a frame of a socket", str(socket.recv(timeout=2)))


class Story:
    """What people and programs do with an installation. All that is said is kept, and looked through at the end."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.search = Search()
        self.kept: list[tuple[str, bytes]] = []

    def keep(self, place: str, content: str | bytes) -> None:
        self.kept.append((place, content.encode() if isinstance(content, str) else content))

    def add(self, name: str, secret: str, reasons: dict[str, str] | None = None) -> str:
        """Let one more canary in."""
        self.search.canaries.append(Canary(name, secret, reasons or {}))
        return secret

    def rollyard(self, *arguments: str) -> str:
        """Run a command of a person; keep what it says."""
        command = [sys.executable, "-m", "controlplane.cli.main", *arguments]
        done = subprocess.run(
            command, env=self.yard.environ, capture_output=True, text=True, timeout=120, check=True, cwd="/"
        )
        place = f"what `rollyard {' '.join(arguments[:2])}` says"
        self.keep(place, done.stdout)
        self.keep(f"{place} on stderr", done.stderr)
        return done.stdout.strip()


def password() -> str:
    """One that is written differently in URLs, JSON, HTML and Python."""
    return f"canary-{secrets.token_hex(12)} ü\"+/&'"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """An installation with a past, looked through while its run trains."""
    place = tmp_path_factory.mktemp("canary")
    services = ("HF_TOKEN", "WANDB_API_KEY", "TEACHER_API_KEY")
    of_services = {name: f"canary{secrets.token_hex(16)}" for name in services}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in of_services.items():
            patched.setenv(name, value)
        with running_yard(place / "up.txt") as yard:
            told = Story(yard)
            for name, value in of_services.items():
                told.add(name, value, {CONTROL_PLANE: "given to `rollyard up` for what it fetches and reports"})
            _own_secrets(told)
            admin = _start_link(told)
            person = _passwords(told, admin)
            run, token = _tokens_and_address(told, person)
            _look_around(told, admin, person, run, token, place)
            _mistakes(told, token)
            _ask_endpoint(told, of_services["TEACHER_API_KEY"], place)
            _train(told, make_tiny_model(place / "model"))
            told.keep("what `rollyard up` says", "".join(yard.said))
            told.keep("what `rollyard up` says on stderr", (place / "up.txt").read_bytes())
            yield told


def _ask_endpoint(told: Story, key: str, place: Path) -> None:
    """A model of others plays, and says the key that it was sent wherever it can: in replies, errors and calls."""

    def answer(body: dict[str, Any]) -> Reply:
        turn = len(server.asked) % 3
        call = {"id": key, "type": "function", "function": {"name": key, "arguments": json.dumps({"key": key})}}
        if turn == 0:
            return json.dumps({"error": {"message": f"your key is {key}"}}).encode()
        return completion(f"your key is {key}", reasoning_content=key, **({"tool_calls": [call]} if turn == 1 else {}))

    with chat_server.serving(answer) as server:
        address = ["--base-url", server.base_url, "--model", "m", "--key", "env:TEACHER_API_KEY"]
        told.rollyard("endpoints", "add", "teacher", *address, "--all-projects")
        told.rollyard("endpoints", "list", "--json")
        told.rollyard("eval", "endpoint:teacher", "--env", "reverse_text", "--problems", "4", "--follow")
        words = ["--env", "reverse_text", "-n", "4", "-k", "1", "--min-reward", "0"]
        told.rollyard("synthesize", "endpoint:teacher", *words, "-o", str(place / "taught.jsonl"))
        assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {key}"}
    told.keep("what a teacher said", (place / "taught.jsonl").read_bytes())


def _own_secrets(told: Story) -> None:
    home = told.yard.home
    told.add("signing key", home.secret_key(), {"the file secret_key": "made there"})
    for role in ("rollyard", "rollyard_owner"):
        where = {f"the file passwords/{role}": "made there"}
        told.add(f"password of {role}", home.database_password(role), where)
    told.add("password of Redis", home.redis_password(), {"the file passwords/redis": "made there"})


def _start_link(told: Story) -> Person:
    """The administrator, signed in with the link that `up` announced."""
    link = told.yard.login_url
    told.add("start link", link.rpartition("/")[2], {"what `rollyard up` says": "to the person who started it"})
    admin = Person(told)
    assert admin.http.get(link).headers["location"] == "/"
    assert Person(told).http.get(link).status_code == 410
    _session(told, "administrator's session", admin)
    return admin


def _session(told: Story, name: str, person: Person) -> None:
    kept = {"a cookie": "it is one", "the table django_session": "Django keeps sessions by their key"}
    kept |= {"the file postgres/*": "the same table and its log"}
    told.add(name, person.cookie, kept)


def _passwords(told: Story, admin: Person) -> Person:
    """An operator who has a password, after some that were wrong."""
    right = told.add("password", password())
    made = admin.post(
        "/admin/auth/user/add/", username="carol", usable_password="true", password1=right, password2=right
    )
    assert made.status_code == 302, made.text
    [(user, project)] = told.yard.sql(
        "SELECT u.id, p.id FROM auth_user u, rollouts_project p WHERE u.username = 'carol'"
    )
    made = admin.post("/admin/rollouts/membership/add/", user=str(user), project=str(project), role="operator")
    assert made.status_code == 302, made.text

    person = Person(told)
    sent = {"username": "carol", "password": told.add("wrong password", password())}
    assert person.post("/login/", **sent).status_code == 200
    elsewhere = told.add("password in another field", password())
    assert person.post("/login/", username="carol", password="x", Password=elsewhere).status_code == 200
    as_name = told.add("password as user name", password(), {"the answer to POST /login/": "the form, as it was sent"})
    assert person.post("/login/", username=as_name, password="x").status_code == 200
    for address in ("/login/", "/admin/login/", "/api/v1/runs"):
        csrf = {"X-CSRFToken": person.http.cookies["rollyard_csrf"]}
        itself = {"the answer to * /admin/login/": ECHO} if address == "/admin/login/" else {}
        secret = told.add(f"password in the address {address}", password(), itself)
        query = {"password": secret, "username": "carol"}
        person.http.get(address, params=query)
        person.http.post(address, params=query, data={"username": "carol"}, headers=csrf)
        body = json.dumps({"username": "carol", "password": told.add(f"password in JSON to {address}", password())})
        for text in (body, body[:-1]):
            person.http.post(address, content=text, headers={**csrf, "Content-Type": "application/json"})
    assert person.post("/login/", username="carol", password=right).status_code == 302
    _session(told, "operator's session", person)
    return person


def _tokens_and_address(told: Story, person: Person) -> tuple[str, str]:
    """A run from outside and a token that feeds it; somebody else signs in by a link that was asked for."""
    scopes = [word for scope in ("read", "launch", "submit", "train") for word in ("--scope", scope)]
    token = told.rollyard("token", "create", "canary", "--user", "carol", *scopes)
    # The beginning of a token is kept, to find it by.
    once = {"what `rollyard token create` says": "once, to the person who makes it"}
    told.add("token", token[15:], once | {"the answer to GET /runs/ry_*": ECHO})
    link = told.rollyard("login-link", "--user", "carol")
    told.add("sign-in link", link.rpartition("/")[2], {"what `rollyard login-link *": "once, to the person who asks"})
    guest = Person(told)
    assert guest.http.get(link).status_code == 302
    assert guest.http.get(link).status_code == 410
    _session(told, "guest's session", guest)

    launched = json.loads(told.rollyard("launch", "external-trainer", "--json"))
    run: str = launched["run"]
    address = launched["atropos_url"]
    shown = "an address is the credential, shown to operators"
    told.add(
        "Atropos address",
        address.rpartition("/")[2],
        {
            "what `rollyard launch *": shown,
            f"the answer to GET /runs/{run}/connect/": shown,
            "the table rollouts_address": "it is looked up, and shown again",
            "the file postgres/*": "the same table and its log",
        },
    )
    until(lambda: told.yard.state(run) == "starting", within_s=60, what="the start of the run")
    for path in ("", "/status", "/batch", "/nowhere", "/docs"):
        assert person.http.get(f"{address}{path}").status_code in {200, 404}
    person.http.post(f"{address}/register", content=b"{")
    groups = msgspec.json.encode([story.scored(f"g{at}") for at in range(3)])
    authorized = {"Authorization": f"Token {token}", "Content-Type": "application/json"}
    stored = person.http.post(f"/api/v1/runs/{run}/groups", content=groups, headers=authorized)
    assert stored.status_code == 201, stored.text
    return run, token


def _look_around(told: Story, admin: Person, person: Person, run: str, token: str, place: Path) -> None:
    """Open pages, read the API, and take exports."""
    pages = ["/", "/runs/new/", "/models/", *(f"/runs/{run}/{each}" for each in PAGES)]
    for each in pages:
        assert person.http.get(each).status_code == 200, each
    for each in ("/trust/", *(f"/admin/{table}" for table in ADMIN)):
        assert admin.http.get(each).status_code == 200, each
    [(user,)] = told.yard.sql("SELECT id FROM auth_user WHERE username = 'carol'")
    for each in ("change", "history"):
        assert admin.http.get(f"/admin/auth/user/{user}/{each}/").status_code == 200
    program = Person(told)
    program.http.headers["Authorization"] = f"Token {token}"
    for each in ("schema", "runs", "models", *(f"runs/{run}{part}" for part in ("", "/events", "/metrics"))):
        assert program.http.get(f"/api/v1/{each}").status_code == 200, each
    person.socket(frames=(json.dumps({"subscribe": [run]}),))
    for words in (["list"], ["show", run], ["show", run, "--json"], ["summary", run]):
        told.rollyard("runs", *words)
    for name in ("groups.jsonl", "groups.jsonl.gz"):
        told.rollyard("export-groups", run, "-o", str(place / name))
        told.keep("an export", (place / name).read_bytes())


PAGES = ("", "live/", "connect/", "rollouts/", "config/", "events/", "groups/g0/")
ADMIN = (
    "",
    *(
        f"{each}/"
        for each in ("auth/user", "axes/accessattempt", "rollouts/apitoken", "rollouts/address", "rollouts/run")
    ),
)


def _mistakes(told: Story, token: str) -> None:
    """Tokens where they do not belong, wrong ones and good ones."""
    stranger = Person(told)
    wrong = told.add("wrong token", f"ry_{secrets.token_hex(32)}", {"the answer to GET /runs/ry_*": ECHO})
    for each in (token, wrong):
        for path in (
            f"/api/v1/runs/{each}",
            f"/runs/{each}/",
            f"/{each}",
            f"/login/link/{each}",
            f"/atropos/{each}/status",
        ):
            stranger.http.get(path)
        stranger.http.get("/api/v1/runs", params={"token": each})
        stranger.http.get("/api/v1/runs", headers={"Authorization": f"Bearer {each}"})
        stranger.http.post(f"/api/v1/runs/{each}/groups", content=each.encode())
        stranger.socket(query=f"?token={each}", headers={"Authorization": f"Token {each}"})
    stranger.http.get("/api/v1/runs", headers={"Authorization": f"Token {wrong}"})
    stranger.http.get("/", headers={"Cookie": f"rollyard_session={told.add('wrong session', secrets.token_hex(16))}"})


def _train(told: Story, model: Path) -> None:
    """A run with a trainer, whose token is looked for while it trains and when it has ended."""
    if confinement.complaint():
        return
    run = json.loads(told.rollyard("launch", "reverse-text-sft", f"model.path={model}", *TRAINS, "--json"))["run"]
    token = until(lambda: _token_of_trainer(told.yard), within_s=90, what="a trainer")
    reasons = {"environment of *trainers.sft*": "the trainer's own", "environment of *shepherd*": "starts the trainer"}
    told.add("trainer's token", token[15:], reasons)
    _processes(told)
    until(lambda: told.yard.state(run) in {"finished", "failed"}, within_s=120, what="the end of the run")
    assert told.yard.state(run) == "finished"
    told.rollyard("runs", "show", run)


def _token_of_trainer(yard: Yard) -> str:
    for process in yard.processes():
        with contextlib.suppress(psutil.Error, FileNotFoundError, ProcessLookupError):
            if "trainers.sft" in process.cmdline() and (token := process.environ().get("ROLLYARD_TOKEN")):
                return token
    return ""


def _processes(told: Story) -> None:
    """Arguments and environments of all that runs."""
    for process in [*told.yard.processes(), psutil.Process(told.yard.process.pid)]:
        at = Path("/proc") / str(process.pid)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            arguments = (at / "cmdline").read_bytes()
            name = arguments.replace(b"\0", b" ").decode(errors="replace")
            told.keep(f"arguments of {name}", arguments)
            told.keep(f"environment of {name}", (at / "environ").read_bytes())


def test_no_secret_is_where_it_does_not_belong(told: Story) -> None:
    _processes(told)
    search, home = told.search, told.yard.home
    for place, content in told.kept:
        search.look(place, content)
    tables = 0
    with psycopg.connect(home.owner_database_url) as connection:
        for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall():
            with connection.cursor().copy(f'COPY "{name}" TO STDOUT') as rows:
                search.look(f"the table {name}", b"".join(bytes(row) for row in rows))
            tables += 1
    assert tables > 30
    with redis.Redis.from_url(home.redis_url) as client:
        for key in client.scan_iter():
            search.look("a key of Redis", key)
            with contextlib.suppress(redis.ResponseError):
                search.look("a value of Redis", client.dump(key) or b"")
    for path in files_below(home.path):
        search.look(f"the file {path.relative_to(home.path)}", content_of(path))
    assert not search.leaks, "\n".join(search.leaks)
    assert search.needless == []
