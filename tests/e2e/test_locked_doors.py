"""What a launched run opens to others, and what of the installation it reaches: tried beside one that trains."""

import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.accounts import open_to_others
from tests.e2e.malice import ROLES, Malice, read
from tests.e2e.yard import Yard, lives, running_yard, until
from tests.lanes import IS_LONG
from tests.moving import files_below
from workers.launchers import confinement
from workers.launchers.accounts import ensure_account

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.vllm,
    pytest.mark.skipif(bool(confinement.complaint()), reason=f"NOT TRIED: {confinement.complaint()}"),
]

LOOK = """
import json, os, socket, sys
places = json.loads(sys.argv[1])
def reads(path):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
        return True
    except OSError:
        return False
def connects(address):
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(3)
        try:
            client.connect(address if isinstance(address, str) else tuple(address))
            return True
        except OSError:
            return False
print(json.dumps({
    "read": [path for path in places["files"] if reads(path)],
    "connected": [address for address in places["sockets"] if connects(address)],
    "processes": [pid for pid in places["pids"] if os.path.exists(f"/proc/{pid}")
                  and open(f"/proc/{pid}/cmdline", "rb").read() == bytes.fromhex(places["pids"][pid])],
}))
"""


ENTER = """
import json, sys
from pathlib import Path
from workers.launchers import confinement, sandbox
room, argv, scratch = json.loads(sys.argv[1])
done = sandbox.run(sandbox.Sandbox(**room), argv, timeout_s=60, environ=confinement.variables(Path(scratch)))
sys.stderr.write(done.stderr)
print(done.stdout)
"""
ACCOUNTS = ["", "rollyard-plain"] if IS_LONG else [""]
"""Whose the installation is: ours, and in the long lane, where we are root, a plain account's."""
SUPERUSERS = "SELECT username FROM auth_user WHERE is_superuser ORDER BY username"


class Training(NamedTuple):
    """A run that trains on two ranks, whose model, loss and environment attack, beside the files of another run."""

    yard: Yard
    run: str
    other: str
    malice: Malice
    account: str
    """Whose the code of the run is, where that is not the installation's."""
    superusers: list[tuple[str]]
    """Before it was launched."""


@pytest.fixture(scope="module", params=ACCOUNTS, ids=["ours", "plain"][: len(ACCOUNTS)])
def training(request: pytest.FixtureRequest) -> Iterator[Training]:
    if request.param and os.geteuid() != 0:
        pytest.skip("ONLY ROOT can run an installation under another account; this one is plain already")
    if request.param:
        ensure_account(request.param)
    # Not pytest's directory, which is closed to others.
    place = Path(tempfile.mkdtemp(prefix="rollyard-malice-"))
    place.chmod(0o755)
    malice = Malice(place)
    with running_yard(place / "up.log", packages=malice.packages, account=request.param) as yard:
        for kind, name in malice.allowed:
            yard.rollyard("trust", "allow", kind, name)
        other = yard.rollyard("launch", "external-trainer")["run"]
        directory = yard.home.path / "runs" / other
        (directory / "weights").mkdir(parents=True, exist_ok=True)
        (directory / "weights" / "model.safetensors").write_bytes(b"theirs")
        if request.param:
            command = ["chown", "--recursive", f"{request.param}:{request.param}", str(directory.parent)]
            subprocess.run(command, check=True, timeout=10)
        malice.learn(yard, other, directory)
        superusers = yard.sql(SUPERUSERS)
        words = [*malice.words, "max_steps=500", "trainer.world_size=2", "batch.batch_size=16"]
        words += ["optimizer.warmup_steps=1", "sampling.max_tokens=8", "inference.kv_cache_gib=0.2", "evaluation=null"]
        words += ["algorithm.max_async_level=0"]  # it goes on while it is looked at, with one core in place of two
        run: str = yard.rollyard("launch", "reverse-text-rl", *words)["run"]
        until(lambda: yard.step(run) >= 2 or yard.state(run) == "failed", within_s=400, what="two steps of training")
        assert yard.state(run) == "running", yard.sql("SELECT reason_params FROM rollouts_run WHERE key = %s", run)
        account = "rollyard-run" if os.geteuid() == 0 and not request.param else ""
        yield Training(yard, run, other, malice, account, superusers)
    shutil.rmtree(place)


def of_the_run(yard: Yard, run: str, kind: str) -> Path:
    """Directory of the replica that is alive."""
    query = (
        "SELECT p.directory FROM rollouts_replica AS p JOIN rollouts_run AS r ON r.id = p.run_id"
        " WHERE r.key = %s AND p.kind = %s AND p.ended_at IS NULL"
    )
    [(directory,)] = yard.sql(query, run, kind)
    return Path(directory)


def ranks(yard: Yard) -> list[psutil.Process]:
    """The processes that train."""
    shells = (b"bwrap", b"torch.distributed.run", b"shepherd")
    lines = called_with(yard).items()
    return [each for each, line in lines if b"trainers.rl" in line and not any(word in line for word in shells)]


def called_with(yard: Yard) -> dict[psutil.Process, bytes]:
    """The command line of every process that has one: what ended, and waits for its parent to notice, has none."""
    found = {}
    for process in yard.processes():
        with contextlib.suppress(OSError):
            found[process] = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    return {process: line for process, line in found.items() if line}


def listening_with(pid: int) -> set[int]:
    """The TCP ports that somebody listens on in the network of a process."""
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


def connects(address: str, port: int) -> bool:
    """Whether somebody listens there for us."""
    with socket.socket() as client:
        client.settimeout(3)
        return client.connect_ex((address, port)) == 0


def test_a_run_listens_on_nothing_that_others_reach(training: Training) -> None:
    yard = training.yard
    ours = {process.pid for process in yard.processes()}
    assert len(ranks(yard)) == 2, "two ranks are at work"
    listening = [
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and connection.pid in ours
    ]
    gateway = yard.victims("web")[0].environ()["ROLLYARD_GATEWAY_URL"]
    assert set(listening) == {("127.0.0.1", int(url.rpartition(":")[2])) for url in (yard.url, gateway)}


def test_nobody_reaches_the_rendezvous_of_a_run(training: Training) -> None:
    """The store that ranks meet in unpickles what anybody sends it."""
    yard = training.yard
    directory = of_the_run(yard, training.run, "trainer")
    inside = {*listening_with(ranks(yard)[0].pid), read(directory, "loss")["listens"]}
    assert len(inside) >= 2, "there is a store, and what the intruder opened"
    listening = [each for each in psutil.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    elsewhere = {each.laddr.port for each in listening if each.pid and is_of_another_test(each.pid, yard)}
    addresses = [each.address for each in chain(*psutil.net_if_addrs().values()) if each.family == socket.AF_INET]
    assert [(address, port) for address in addresses for port in inside - elsewhere if connects(address, port)] == []
    if os.geteuid() == 0:  # what root finds with the run's own network is there to be found
        words = ["nsenter", "--net", "--target", str(ranks(yard)[0].pid), sys.executable, "-c", LOOK]
        places = {"files": [], "pids": {}, "sockets": [["127.0.0.1", port] for port in sorted(inside)]}
        seen = json.loads(subprocess.check_output([*words, json.dumps(places)], timeout=60))
        assert len(seen["connected"]) >= 2


def is_of_another_test(pid: int, yard: Yard) -> bool:
    """Whether it is surely none of the yard: it may listen out here at a port of the same number as one inside."""
    pytests = {each.pid for each in psutil.Process(os.getppid()).children()}
    with contextlib.suppress(psutil.Error):
        # Also of what another of pytest's processes started: vLLM's, renamed, have lost their environment.
        if pid in pytests or (pytests - {os.getpid()}) & {each.pid for each in psutil.Process(pid).parents()}:
            return True
        return psutil.Process(pid).environ().get("ROLLYARD_HOME", str(yard.home.path)) != str(yard.home.path)
    return False


@pytest.mark.parametrize("role", ROLES)
def test_code_that_a_run_lets_in_wins_nothing(training: Training, role: str) -> None:
    yard = training.yard
    report = read(yard.home.path / "runs" / training.run, role)
    assert len(report["tried"]) == 13
    assert report["won"] == {}
    assert training.malice.written() == []
    assert yard.sql(SUPERUSERS) == training.superusers
    assert yard.state(training.other) == "starting"  # as before


def test_the_same_code_without_a_sandbox_wins_what_it_wants(training: Training, tmp_path: Path) -> None:
    won = training.malice.outside(tmp_path)["won"]
    written = training.malice.written()
    assert {path.parent for path in written} == set(training.malice.tempting)
    for path in written:
        path.unlink()
    assert {"read_files_of_the_installation", "see_processes_of_others", "signal_processes_of_others"} <= won.keys()
    assert {"reach_addresses", "use_the_network"} <= won.keys()


def test_code_of_a_run_is_imported_nowhere_else(training: Training) -> None:
    home = training.yard.home.path
    left = [path for path in files_below(home) if path.match("intruder-*.json")]
    left = [path for path in left if not path.is_relative_to(home / "runs" / training.run)]
    assert left + list(Path.cwd().glob("intruder-*.json")) == []


@pytest.mark.parametrize("kind", ["trainer", "inference"])
def test_from_inside_nothing_of_the_installation_can_be_reached(training: Training, kind: str) -> None:
    yard, run = training.yard, training.run
    home = yard.home
    directory = of_the_run(yard, run, kind)
    spec = json.loads((directory / "spec.json").read_text())
    port = int(yard.url.rpartition(":")[2])
    other = "inference" if kind == "trainer" else "trainer"
    places: dict[str, Any] = {
        "files": [
            str(home.path),
            str(home.path / "secret_key"),
            str(home.path / "runs" / training.other / "weights" / "model.safetensors"),
            str(home.postgres_data),
            str(home.path / "logs" / "up.log"),
            str(directory / "spec.json"),
            str(directory / "log.txt"),
            str(of_the_run(yard, run, other) / "spec.json"),
            "/etc/shadow",
        ],
        "sockets": [
            str(home.postgres_socket_dir / ".s.PGSQL.5432"),
            str(home.redis_socket),
            ["127.0.0.1", port],
            ["192.0.2.1", 443],
        ],
        "pids": {str(process.pid): line.hex() for process, line in called_with(yard).items()},
    }
    if kind == "trainer":
        places["sockets"].append(str(next(home.run_dir.glob("serve/*/vllm.sock"))))
    else:
        places["sockets"].append(str(home.runs_socket))
    argv = [sys.executable, "-c", LOOK, json.dumps(places)]
    words = [sys.executable, "-c", ENTER, json.dumps([spec["sandbox"], argv, str(directory / "scratch")])]
    # As the installation does: where it is a plain account's, the sandbox is a plain account's.
    command, environ = [*yard.become, *words], yard.environ
    seen = json.loads(subprocess.check_output(command, env=environ, cwd=Path.cwd(), timeout=90))
    if seen["read"] == [str(home.path)]:
        seen["read"] = []  # a parent of what is shown, with nothing else in it
    assert seen == {"read": [], "connected": [], "processes": []}


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT can become the other account that this tries")
def test_another_account_reads_no_file_and_opens_no_socket(training: Training) -> None:
    yard = training.yard
    assert list(open_to_others(yard.home.path)) == []
    sockets = [str(yard.home.redis_socket), str(yard.home.runs_socket)]
    sockets += [str(yard.home.postgres_socket_dir / ".s.PGSQL.5432")]
    sockets += [str(path) for path in yard.home.run_dir.glob("serve/*/vllm.sock")]
    assert len(sockets) == 4
    files = [str(path) for path in files_below(yard.home.path) if "postgres" not in str(path)][:500]
    nobody = pwd.getpwnam("nobody")
    places = json.dumps({"files": files, "sockets": sockets, "pids": {}})
    become = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    done = subprocess.run(
        [*become, "/usr/bin/python3", "-c", LOOK, places],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    seen = json.loads(done.stdout)
    assert (seen["read"], seen["connected"]) == ([], [])


def test_a_run_that_is_stopped_leaves_nothing(training: Training) -> None:
    yard, run = training.yard, training.run
    key = yard.home.path / "secret_key"
    of_key = key.stat()
    launched = [process for process, line in called_with(yard).items() if b"shepherd" in line]
    launched += [child for shepherd in launched for child in shepherd.children(recursive=True)]
    assert len(launched) > 6, "shepherds, sandboxes, ranks and vLLM"
    if training.account:
        assert training.account in {process.username() for process in launched}
    yard.rollyard("runs", "stop", run)
    until(lambda: yard.state(run) == "stopped", within_s=120, what="the stop")
    until(lambda: not any(map(lives, launched)), within_s=20, what="the end of every process that was launched")
    links = [path for path in yard.home.path.rglob("link-*") if path.is_symlink()]
    assert links, "which the intruder planted"
    assert (key.stat().st_mode, key.stat().st_uid, key.stat().st_gid) == (of_key.st_mode, of_key.st_uid, of_key.st_gid)
