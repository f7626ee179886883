"""Settings under which nothing starts: each is named with its fix, before a port answers."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane.home import Home
from controlplane.safety import Installation, installation, refusals, sheltered
from tests.controlplane.command_line import ROOT

GOOD = Installation(
    debug=False,
    hosts=["localhost", "rollyard.example"],
    secret_key="".join(map(chr, range(48, 98))),
    https=True,
    plain_http=False,
    home=Path("/nowhere"),
    runs=Path("/nowhere/runs"),
    confined=True,
)


def test_what_is_safe_is_not_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    (tmp_path / "logs").mkdir(0o700)
    here = ["localhost", "127.0.0.1"]
    for safe in (GOOD, GOOD._replace(https=False, hosts=here), GOOD._replace(home=tmp_path)):
        assert refusals(safe) == []
    assert refusals(GOOD._replace(https=False, plain_http=True)) == []
    assert refusals(GOOD._replace(hosts=[".rollyard.example"])) == []


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"debug": True}, "ROLLYARD_DEBUG"),
        ({"debug": True, "hosts": ["localhost"], "https": False}, "ROLLYARD_DEBUG"),
        ({"debug": True, "serves": False}, "ROLLYARD_DEBUG"),
        ({"hosts": ["*"]}, "ROLLYARD_ALLOWED_HOSTS"),
        ({"hosts": ["localhost", ".com"]}, "ROLLYARD_ALLOWED_HOSTS"),
        ({"secret_key": "abc"}, "ROLLYARD_SECRET_KEY"),
        ({"secret_key": "x" * 50}, "ROLLYARD_SECRET_KEY"),
        ({"secret_key": f"django-insecure-{GOOD.secret_key}"}, "ROLLYARD_SECRET_KEY"),
        ({"https": False}, "plain HTTP"),
    ],
)
def test_what_is_not_is_named_with_its_fix(setting: dict[str, Any], named: str) -> None:
    [refusal] = refusals(GOOD._replace(**setting))
    assert named in refusal.what
    assert refusal.fix


def test_a_developer_may_debug_on_this_machine_without_serving_anybody() -> None:
    assert refusals(GOOD._replace(debug=True, serves=False, hosts=["localhost"])) == []


def test_what_the_document_on_clusters_says_to_type_starts_and_needs_what_it_sets(tmp_path: Path) -> None:
    command = r"^ +((?:\w+=\S+ )*)(?:\\\n +)?rollyard up(?: --host (\S+))?"
    typed = re.findall(command, (ROOT / "docs/cluster.md").read_text(), re.MULTILINE)
    assert [host for _, host in typed] == ["", "10.0.0.1", "10.0.0.1"]
    for words, host in typed:
        environ = dict(word.split("=", 1) for word in words.split())
        judged = installation(environ, home=tmp_path / "home", secret_key=GOOD.secret_key, hosts=[host or "127.0.0.1"])
        assert refusals(judged) == []
        bare = judged._replace(https=False, plain_http=False)
        assert [each.id for each in refusals(bare)] == ["controlplane.E005"]


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o703])
def test_a_home_that_others_look_into_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    [refusal] = refusals(GOOD._replace(home=tmp_path))
    assert f"chmod -R go-rwx {tmp_path}" in refusal.fix


@pytest.mark.parametrize(("opened", "mode"), [("home/logs", 0o711), ("home/passwords/redis", 0o640), ("runs", 0o755)])
def test_so_is_each_of_its_directories_and_passwords_and_a_directory_of_runs_elsewhere(
    tmp_path: Path, opened: str, mode: int
) -> None:
    home, runs = Home(tmp_path / "home"), tmp_path / "runs"
    home.redis_password()
    for directory in (home.path / "logs", runs):
        directory.mkdir(0o700)
    judged = GOOD._replace(home=home.path, runs=runs)
    assert refusals(judged) == []
    (tmp_path / opened).chmod(mode)
    [refusal] = refusals(judged)
    assert refusal.fix == f"chmod -R go-rwx {tmp_path / opened}"


def test_what_an_older_release_left_open_is_closed_when_the_home_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, everybodys = tmp_path / "runs elsewhere", tmp_path / "everybody's"
    for directory, mode in ((runs, 0o755), (everybodys, 0o1777)):
        directory.mkdir()
        directory.chmod(mode)
        monkeypatch.setenv("ROLLYARD_RUNS_DIR", str(directory))
        Home(tmp_path / "home").create()
    assert [path.stat().st_mode & 0o7777 for path in (runs, everybodys)] == [0o700, 0o1777]
    judged = installation(os.environ, home=tmp_path / "home", secret_key=GOOD.secret_key)
    assert [str(everybodys) in each.what for each in refusals(judged)] == [True]


@pytest.mark.parametrize("named", ["~/elsewhere", "a/../elsewhere"])
def test_the_directory_of_runs_is_one_place_for_all_who_ask(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("HOME", tmp_path), ("ROLLYARD_HOME", tmp_path / "home"), ("ROLLYARD_RUNS_DIR", named)):
        monkeypatch.setenv(variable, str(value))
    monkeypatch.chdir(tmp_path)
    home = Home.from_environ()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shown = [sys.executable, "-c", "from controlplane import settings; print(settings.ROLLYARD_RUNS_DIR)"]
    said = subprocess.run(shown, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    judged = installation(os.environ, home=home.path, secret_key=GOOD.secret_key)
    assert {Path(said), home.runs, judged.runs} == {tmp_path / "elsewhere"}


@pytest.mark.parametrize(
    ("server", "settings", "status"),
    [
        (("127.0.0.1", 8000), {}, 200),
        (("::1", 8000), {}, 200),
        (("/run/rollyard.sock", None), {}, 200),
        (("10.0.0.7", 8000), {}, 403),
        (("10.0.0.7", 8000), {"https": True}, 200),
        (("10.0.0.7", 8000), {"plain_http": True}, 200),
    ],
)
def test_where_an_application_listens_is_judged_by_who_connects(
    server: tuple[str, int | None], settings: dict[str, Any], status: int
) -> None:
    sent: list[Any] = []

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    judged = GOOD._replace(**{"hosts": ["localhost"], "https": False, **settings})
    asyncio.run(sheltered(application, judged)({"type": "http", "server": server}, receive, send))
    assert sent[0]["status"] == status
    assert status == 200 or b"ROLLYARD_HTTPS=1" in sent[1]["body"]
    asyncio.run(sheltered(application, judged)({"type": "websocket", "server": server}, receive, send))
    assert (sent[-1]["type"] == "websocket.close") == (status == 403)


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT is refused to run without sandboxes")
def test_root_is_refused_without_sandboxes() -> None:
    [refusal] = refusals(GOOD._replace(confined=False))
    assert "ROLLYARD_UNSAFE_NO_SANDBOX" in refusal.what


def test_a_home_among_the_programs_that_every_run_is_shown_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    inside = {"home": tmp_path / "share" / "rollyard"}, {"runs": tmp_path / "runs"}, {"home": Path("/usr/rollyard")}
    for place in inside:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        [refusal] = refusals(GOOD._replace(**place))
        assert f"{next(iter(place.values()))} lies in " in refusal.what
        monkeypatch.setattr(os, "geteuid", lambda: 0)  # whose files are closed to the account of runs
        assert refusals(GOOD._replace(**place)) == []


@pytest.mark.parametrize(
    "command",
    [[sys.executable, "-c", "import controlplane.asgi"], [sys.executable, "-m", "controlplane.cli.main", "up"]],
    ids=["asgi", "up"],
)
def test_an_unsafe_start_is_refused_with_every_reason(command: list[str], tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if key not in {"DATABASE_URL", "REDIS_URL"}}
    environ |= {"DJANGO_SETTINGS_MODULE": "controlplane.settings", "ROLLYARD_HOME": str(tmp_path / "home")}
    environ |= {"ROLLYARD_SECRET_KEY": "abc", "ROLLYARD_DEBUG": "1", "ROLLYARD_ALLOWED_HOSTS": ".com"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    for name in ("ROLLYARD_SECRET_KEY", "ROLLYARD_DEBUG", "ROLLYARD_ALLOWED_HOSTS"):
        assert name in done.stderr
    assert not (tmp_path / "home" / "postgres").exists()
