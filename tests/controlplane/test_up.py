"""`rollyard up` with real processes: it heals whatever is killed, and leaves nothing behind."""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from controlplane.home import APPLICATION, OWNER, Home
from controlplane.up import processes
from tests.accounts import open_to_others
from tests.e2e.yard import lives
from tests.lanes import long_lane
from tests.moving import content_of, files_below
from tests.patience import PATIENCE
from workers.launchers.processes import end, with_cwd

ACCOUNTLESS = """
from controlplane.cli.main import main
from workers.launchers import accounts
from workers.launchers.sandbox import SandboxUnavailable

def account_of_runs():
    raise SandboxUnavailable("there is no useradd")

accounts.account_of_runs = account_of_runs
main()
"""
"""`rollyard`, where no account can be made for runs."""

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


class Up:
    """A running `rollyard up`, its events as they come."""

    def __init__(
        self,
        home: Home,
        *arguments: str,
        program: Sequence[str] = (sys.executable, "-m", "controlplane.cli.main"),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        argv = [*program, "up", "--json", "--quiet", "--port", "auto", *arguments]
        environment = environ_of(home) | (environ or {})
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
        self.seen: list[dict[str, Any]] = []
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def wait_for(self, deadline_s: float = 120.0, **fields: Any) -> dict[str, Any]:
        """Return the next event with these fields; events before it are remembered in `seen`."""
        give_up_at = time.monotonic() + deadline_s
        while event := self._lines.get(timeout=max(0.01, give_up_at - time.monotonic())):
            self.seen.append(event)
            if fields.items() <= event.items():
                return event
        raise AssertionError(f"`up` ended before {fields}: {self.seen[-5:]}")

    def pid_of(self, process: str) -> int:
        return int(
            [each["pid"] for each in self.seen if (each["event"], each.get("process")) == ("started", process)][-1]
        )

    @property
    def first(self) -> dict[str, Any]:
        return next(each for each in self.seen if each["event"] == "url")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def environ_of(home: Home) -> dict[str, str]:
    environ = {key: value for key, value in os.environ.items() if key not in {"DATABASE_URL", "REDIS_URL"}}
    return environ | {"ROLLYARD_HOME": str(home.path), "DJANGO_SETTINGS_MODULE": "controlplane.settings"}


def wait_until(condition: Callable[[], bool], deadline_s: float) -> None:
    give_up_at = time.monotonic() + PATIENCE * deadline_s
    while not condition():
        assert time.monotonic() < give_up_at, "the deadline passed"
        time.sleep(0.05)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=20).json() == {"status": "ok", "database": "ok", "redis": "ok"}
    except (httpx.HTTPError, json.JSONDecodeError):
        return False


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    path = Path(tempfile.mkdtemp(prefix="rollyard-up-"))
    yield Home(path)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def up(home: Home) -> Iterator[Up]:
    running = Up(home)
    try:
        running.wait_for(event="up")
        yield running
        assert running.stop() == 0
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        left = processes.of_up(running.first["id"]) | with_cwd(home.postgres_data, "postgres")
        processes.sweep(running.first["id"], 1)
        end(lambda: with_cwd(home.postgres_data, "postgres"), 1)
    assert left == set(), "a stop leaves no process"


def test_printed_link_signs_in_once(up: Up) -> None:
    link = up.first["login_url"]
    with httpx.Client() as client:
        answer = client.get(link)
        assert (answer.status_code, "rollyard_session" in client.cookies) == (302, True)
    assert httpx.get(link).status_code == 410


def test_nothing_in_the_home_is_open_to_another_account_and_the_link_is_in_none_of_it(up: Up, home: Home) -> None:
    token = up.first["login_url"].rpartition("/")[2].encode()
    assert [*open_to_others(home.path), *open_to_others(home.run_dir)] == []
    files = list(files_below(home.path))
    assert len(files) > 10
    assert [path for path in files if token in content_of(path)] == []


def test_its_record_says_where_the_runs_are(up: Up, home: Home) -> None:
    assert json.loads(home.record_file.read_text())["runs"] == str(home.runs)


def test_no_password_is_in_an_argument_a_variable_or_a_file_but_its_own(up: Up, home: Home) -> None:
    passwords = [home.database_password(APPLICATION), home.database_password(OWNER), home.redis_password()]
    pids = processes.of_up(up.first["id"])
    assert len(pids) >= 4
    told = [Path(f"/proc/{pid}/{what}") for pid in pids | {up.process.pid} for what in ("cmdline", "environ")]
    kept = [path for path in files_below(home.path) if path.parent.name != "passwords"]
    for password in passwords:
        assert [path for path in [*told, *kept] if password.encode() in content_of(path)] == []


@pytest.mark.parametrize("process", ["web", "worker", "redis", "postgres", "reconciler"])
def test_killed_process_comes_back_and_the_installation_is_ready_again(up: Up, process: str) -> None:
    url = up.first["url"]
    wait_until(lambda: is_ready(url), 60)
    killed = up.pid_of(process)
    os.kill(killed, signal.SIGKILL)
    up.wait_for(event="exited", process=process, pid=killed)
    assert up.wait_for(60, event="ready", process=process)["pid"] != killed
    wait_until(lambda: is_ready(url), 60)


def test_client_that_comes_while_web_is_away_waits_instead_of_failing(up: Up) -> None:
    url = up.first["url"]
    wait_until(lambda: is_ready(url), 60)
    os.kill(up.pid_of("web"), signal.SIGKILL)
    up.wait_for(event="exited", process="web")
    assert httpx.get(f"{url}/healthz", timeout=30).status_code == 200
    up.wait_for(event="ready", process="web")


def test_second_up_on_the_same_home_is_refused_and_says_why(up: Up, home: Home) -> None:
    environ = {**os.environ, "ROLLYARD_HOME": str(home.path)}
    done = subprocess.run(
        [sys.executable, "-m", "controlplane.cli.main", "up"], env=environ, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert f"already runs on {home.path}" in done.stderr
    assert up.first["url"] in done.stderr


def test_detached_process_of_an_up_that_was_killed_is_ended_by_the_next_up(temporary_home: Home) -> None:
    first = Up(temporary_home)
    first.wait_for(event="up")
    up_id = first.first["id"]
    # What a replica is: a process in a session of its own that only its environment ties to the `up`.
    detached = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.pause()"],
        env={**os.environ, processes.UP_VARIABLE: up_id},
        start_new_session=True,
    )
    first.process.kill()
    first.process.wait()
    second = Up(temporary_home)
    try:
        second.wait_for(event="up")
        assert detached.wait(10) == -signal.SIGTERM
        assert processes.of_up(up_id) == set()
        assert second.stop() == 0
    finally:
        detached.kill()
        second.process.kill()
    assert processes.of_up(second.first["id"]) == set()
    assert with_cwd(temporary_home.postgres_data, "postgres") == set()


@long_lane("the next `up` ends what is left")
def test_children_of_a_killed_up_end_by_themselves(temporary_home: Home) -> None:
    up = Up(temporary_home)
    up.wait_for(event="up")
    children = [psutil.Process(up.pid_of(name)) for name in ("postgres", "redis", "web", "worker")]
    up.process.kill()
    up.process.wait()
    # What is left of one that nobody waits for is PID 1's, which reaps when it pleases.
    wait_until(lambda: not any(map(lives, children)), deadline_s=30)
    processes.sweep(up.first["id"], 1)


BEHIND_A_PROXY = {"ROLLYARD_URL": "https://box.example/", "http_proxy": "http://127.0.0.1:9"}
"""People come by a proxy; to the outside world another leads, which answers nobody."""


@pytest.fixture(scope="module")
def playing_elsewhere() -> Iterator[tuple[Home, Up]]:
    """One whose workers are on other machines, as it starts: at an address of its own, without a terminal."""
    path = Path(tempfile.mkdtemp(prefix="rollyard-up-"))
    program = ("nohup", sys.executable, "-m", "controlplane.cli.main")
    up = Up(Home(path), "--concurrency", "0", "--host", "127.0.0.2", program=program, environ=BEHIND_A_PROXY)
    try:
        up.wait_for(event="url")
        yield Home(path), up
        assert up.stop() == 0
    finally:
        up.process.kill()
        shutil.rmtree(path, ignore_errors=True)


SAID = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


def rollyard(home: Home, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "controlplane.cli.main", *words]
    done = subprocess.run(argv, env=environ_of(home), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_a_command_that_comes_while_up_starts_waits_for_the_database(
    playing_elsewhere: tuple[Home, Up], tmp_path: Path
) -> None:
    home, _ = playing_elsewhere
    (tmp_path / "good.jsonl").write_text(json.dumps({"messages": SAID}) + "\n")
    done = rollyard(home, "datasets", "import", "good", str(tmp_path / "good.jsonl"))
    assert "which still starts" in done.stderr


def test_what_is_exported_is_written_where_it_is_fetched_though_no_worker_is_there(
    playing_elsewhere: tuple[Home, Up],
) -> None:
    home, up = playing_elsewhere
    scopes = ("--scope", "read", "--scope", "curate")
    token = json.loads(rollyard(home, "token", "create", "mine", *scopes, "--json").stdout)["token"]
    url, key = f"{up.first['local_url']}/api/v1/", {"Authorization": f"Token {token}"}
    with httpx.Client(base_url=url, headers=key, timeout=20) as api:
        wait_until(lambda: is_ready(up.first["local_url"]), deadline_s=60)
        asked = api.post("exports", json={"version": "good@1", "form": "sft", "file_format": "jsonl"})
        assert asked.status_code == 201, asked.text
        path = f"exports/{asked.json()['export']}"
        wait_until(lambda: api.get(path).json()["state"] == "done", deadline_s=30)
        row = json.loads(api.get(f"{path}/files/train.jsonl").text)
        assert row["prompt"] + row["completion"] == SAID


def test_the_url_that_was_set_is_where_people_come_and_not_where_up_asks_its_own_processes(
    playing_elsewhere: tuple[Home, Up],
) -> None:
    _, up = playing_elsewhere
    up.wait_for(event="up")
    link = up.first["login_url"]
    assert link.startswith("https://box.example/login/link/")
    by_proxy = {"Host": "box.example", "Origin": "https://box.example", "X-Forwarded-Proto": "https"}
    with httpx.Client(base_url=up.first["local_url"], headers=by_proxy, timeout=20) as browser:
        page = browser.get("/login/")
        assert "Secure" in page.headers["set-cookie"]
        assert page.headers["strict-transport-security"]
        form = {"username": "nobody", "password": "x", "csrfmiddlewaretoken": browser.cookies["rollyard_csrf"]}
        cookie = {"Cookie": f"rollyard_csrf={form['csrfmiddlewaretoken']}", "Referer": link}
        assert browser.post("/login/", data=form, headers=cookie).status_code == 200
        assert "Secure" in browser.get(link.removeprefix("https://box.example")).headers["set-cookie"]


def test_what_was_started_to_outlive_its_terminal_does(playing_elsewhere: tuple[Home, Up]) -> None:
    _, up = playing_elsewhere
    reconciler = up.pid_of("reconciler")
    up.process.send_signal(signal.SIGHUP)
    os.kill(reconciler, signal.SIGKILL)
    assert up.wait_for(event="ready", process="reconciler")["pid"] != reconciler


def test_where_no_sandbox_can_be_made_up_says_that_runs_are_refused_and_serves_all_the_same(
    temporary_home: Home,
) -> None:
    up = Up(temporary_home, program=(sys.executable, "-c", ACCOUNTLESS))
    try:
        up.wait_for(event="up")
        [reason] = [each["reason"] for each in up.seen if each["event"] == "refuses_runs"]
        assert "there is no useradd" in reason
        assert is_ready(up.first["url"])
        assert temporary_home.runs_socket.parent.stat().st_mode & 0o077 == 0
    finally:
        assert up.stop() == 0
    assert "every run that is not external will be refused" in (temporary_home.path / "logs" / "up.log").read_text()
