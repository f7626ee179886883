"""Launchers against real processes: whatever is killed, nothing stays behind and nothing is forgotten."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.moving import files_below
from tests.workers.waiting import IN_A_SANDBOX, eventually
from workers.launchers.base import End, Handle, LaunchError, LaunchSpec
from workers.launchers.local import LocalLauncher
from workers.launchers.processes import carriers, send, start_time

pytestmark = pytest.mark.slow

STAY = "import signal; signal.pause()"
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('deaf', flush=True)
while True:
    signal.pause()
"""
POLITE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print('up', flush=True)
signal.pause()
"""
FAMILY = f"""
import subprocess, sys
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True)
print("family", flush=True)
import signal
signal.pause()
"""
"""A command whose children lead sessions of their own and ignore SIGTERM, as an engine that hangs does."""
RENAMED = (
    "import setproctitle, signal; setproctitle.setproctitle('Engine'); print('renamed', flush=True); signal.pause()"
)


@pytest.fixture
def launcher() -> LocalLauncher:
    return LocalLauncher()


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[LaunchSpec]:
    spec = LaunchSpec(str(uuid.uuid4()), tmp_path / "replica", [sys.executable, "-c", STAY], grace_s=0.5)
    yield spec
    LocalLauncher().sweep(spec.token, 0)
    eventually(lambda: not carriers(spec.token))


def running(spec: LaunchSpec, program: str, **changes: object) -> LaunchSpec:
    fields = {"argv": [sys.executable, "-c", program], "environ": spec.environ, "grace_s": spec.grace_s, **changes}
    return LaunchSpec(token=spec.token, directory=spec.directory, **fields)  # type: ignore[arg-type]


def started(handle: Handle) -> dict[str, int]:
    content: dict[str, int] = json.loads((handle.directory / "started.json").read_text())
    return content


def exited(handle: Handle) -> bool:
    return not LocalLauncher().poll(handle).alive


def said(handle: Handle, word: str, times: int = 1) -> bool:
    return LocalLauncher().logs(handle, 100).count(word) >= times


def test_started_replica_is_alive_and_shows_a_heartbeat(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    handle = launcher.start(spec)
    assert launcher.poll(handle).alive
    first = eventually(lambda: launcher.poll(handle).heartbeat_age_s is not None)
    assert first
    mtime = (handle.directory / "heartbeat").stat().st_mtime_ns
    eventually(lambda: (handle.directory / "heartbeat").stat().st_mtime_ns > mtime, what="a second heartbeat")


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code_and_log_of_a_command_that_ends_are_kept(
    launcher: LocalLauncher, spec: LaunchSpec, code: int
) -> None:
    handle = launcher.start(running(spec, f"print('last words'); raise SystemExit({code})"))
    eventually(lambda: exited(handle))
    assert launcher.poll(handle).exit_code == code
    assert launcher.logs(handle, 5) == "last words"
    eventually(lambda: not carriers(spec.token), what="the shepherd leaves too")
    assert [path.name for path in handle.directory.glob("*partial*")] == []


def test_a_command_computes_on_the_cores_that_are_its_own(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    last = max(os.sched_getaffinity(0))
    handle = launcher.start(running(spec, "import os; print(os.sched_getaffinity(0))", cores=[last]))
    eventually(lambda: exited(handle))
    assert launcher.logs(handle, 1) == str({last})


def test_command_that_cannot_be_run_is_an_error_with_its_reason(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    with pytest.raises(LaunchError, match="there is no program /nowhere"):
        launcher.start(LaunchSpec(spec.token, spec.directory, ["/nowhere/at-all"]))
    eventually(lambda: not carriers(spec.token))


def test_same_directory_is_never_started_twice(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    launcher.start(spec)
    with pytest.raises(LaunchError):
        launcher.start(spec)
    eventually(lambda: len(carriers(spec.token)) == IN_A_SANDBOX)


def test_killed_command_leaves_none_of_its_children(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    handle = launcher.start(running(spec, FAMILY))
    eventually(lambda: said(handle, "deaf", 2))
    os.kill(started(handle)["child_pid"], signal.SIGKILL)
    eventually(lambda: exited(handle))
    assert launcher.poll(handle).exit_code == -signal.SIGKILL
    eventually(lambda: not carriers(spec.token))


def test_killed_shepherd_takes_all_of_its_sandbox_along(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    handle = launcher.start(running(spec, FAMILY))
    eventually(lambda: said(handle, "deaf", 2))
    record = started(handle)
    os.kill(record["pid"], signal.SIGKILL)
    eventually(lambda: start_time(record["child_pid"]) is None, what="the command dies with its shepherd")
    observation = launcher.poll(handle)
    assert not observation.alive
    assert observation.exit_code is None
    assert observation.end is End.UNWATCHED
    eventually(lambda: not carriers(spec.token), what="also children with sessions of their own")


def test_process_that_renamed_itself_is_still_swept(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    handle = launcher.start(running(spec, RENAMED))
    eventually(lambda: said(handle, "renamed"))
    assert started(handle)["child_pid"] in carriers(spec.token)


def test_stop_lets_the_command_end_by_itself(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    handle = launcher.start(running(spec, POLITE, grace_s=10.0))
    eventually(lambda: said(handle, "up"))
    observation = launcher.stop(handle, deadline_s=20)
    assert (observation.alive, observation.exit_code, observation.end) == (False, 0, End.ASKED)


def test_stop_kills_a_deaf_command_within_its_grace(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    handle = launcher.start(running(spec, STUBBORN))
    eventually(lambda: said(handle, "deaf"))
    observation = launcher.stop(handle, deadline_s=20)
    assert observation.exit_code == -signal.SIGKILL
    eventually(lambda: not carriers(spec.token))


def test_stop_kills_all_at_its_own_deadline_when_the_grace_is_longer(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    handle = launcher.start(running(spec, STUBBORN, grace_s=600.0))
    eventually(lambda: said(handle, "deaf"))
    assert not launcher.stop(handle, deadline_s=0.3).alive
    eventually(lambda: not carriers(spec.token))


def test_stop_of_an_ended_replica_changes_nothing(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    handle = launcher.start(running(spec, "raise SystemExit(4)"))
    eventually(lambda: exited(handle))
    assert launcher.stop(handle, deadline_s=1).exit_code == 4


def test_replica_outlives_its_launcher_and_is_adopted(spec: LaunchSpec) -> None:
    program = (
        "import sys; from pathlib import Path; from workers.launchers.base import LaunchSpec\n"
        "from workers.launchers.local import LocalLauncher\n"
        f"LocalLauncher().start(LaunchSpec({spec.token!r}, Path({str(spec.directory)!r}), {list(spec.argv)!r}))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    adopted = LocalLauncher()
    handle = Handle(spec.token, spec.directory)
    assert adopted.poll(handle).alive
    assert not adopted.stop(handle, deadline_s=10).alive


def test_another_process_with_the_old_id_is_not_taken_for_the_replica(
    launcher: LocalLauncher, spec: LaunchSpec
) -> None:
    handle = launcher.start(running(spec, "pass"))
    eventually(lambda: exited(handle))
    (handle.directory / "exit.json").unlink()
    record = started(handle)
    (handle.directory / "started.json").write_text(json.dumps({**record, "pid": os.getpid()}))
    assert not launcher.poll(handle).alive
    assert not launcher.stop(handle, deadline_s=1).alive
    assert not send(os.getpid(), signal.SIGTERM, started=record["start_time"])


def test_replica_that_was_never_started_says_so(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    observation = launcher.poll(Handle(spec.token, spec.directory))
    assert not observation.alive
    assert observation.end is End.UNSTARTED
    assert launcher.logs(Handle(spec.token, spec.directory), 5) == ""


def test_death_of_the_supervisor_ends_the_replica(launcher: LocalLauncher, spec: LaunchSpec) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", STAY])
    try:
        handle = launcher.start(running(spec, STAY, environ={"ROLLYARD_UP_PID": str(supervisor.pid)}))
        assert launcher.poll(handle).alive
    finally:
        supervisor.kill()
        supervisor.wait()
    eventually(lambda: exited(handle))
    assert launcher.poll(handle).end is End.ABANDONED
    eventually(lambda: not carriers(spec.token))


def test_secrets_are_in_the_environment_and_in_no_file(
    launcher: LocalLauncher, spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL", "ROLLYARD_SECRET_KEY"):
        monkeypatch.setenv(name, "canary-of-the-control-plane")
    program = (
        "import os; print(os.environ['ROLLYARD_TOKEN'] == 'canary-' + 'token', 'of-the-control' in str(os.environ))"
    )
    handle = launcher.start(running(spec, program, environ={"ROLLYARD_TOKEN": "canary-token"}))
    eventually(lambda: exited(handle))
    assert launcher.logs(handle, 1) == "True False"
    assert all(b"canary" not in path.read_bytes() for path in files_below(handle.directory) if path.name != "spec.json")
    assert b"canary-token" not in (handle.directory / "spec.json").read_bytes()


def test_file_that_is_being_written_when_its_writer_is_killed_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    program = (
        "import itertools, sys; from pathlib import Path; from workers.launchers.shepherd import write_json\n"
        f"for n in itertools.count(): write_json(Path({str(path)!r}), {{'n': n, 'rest': 'x' * 20000}})"
    )
    for _ in range(8):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", program])
        eventually(path.exists)
        writer.kill()
        writer.wait()
        assert len(json.loads(path.read_text())["rest"]) == 20000
