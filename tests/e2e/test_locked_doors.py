"""What a launched run opens to others, and what of the installation it reaches: tried beside one that trains."""

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.accounts import open_to_others
from tests.e2e.yard import Yard, make_tiny_model, running_yard, until
from workers.launchers import confinement, sandbox
from workers.launchers.sandbox import Sandbox

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.vllm,
    pytest.mark.timeout(900),
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


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Yard, str]]:
    """An installation in which a run on two ranks trains, beside the files of another run."""
    place = tmp_path_factory.mktemp("locked")
    model = make_tiny_model(place / "model")
    with running_yard(place / "up.log") as yard:
        words = [f"model.path={model}", "max_steps=500", "trainer.world_size=2", "batch.batch_size=16"]
        words += ["optimizer.warmup_steps=1", "sampling.max_tokens=8", "inference.kv_cache_gib=0.2"]
        other = yard.home.path / "runs" / "another" / "weights"
        other.mkdir(parents=True)
        (other / "model.safetensors").write_bytes(b"theirs")
        run: str = yard.rollyard("launch", "reverse-text-rl", *words)["run"]
        until(lambda: yard.step(run) >= 2, within_s=400, what="two steps of training")
        yield yard, run


def of_the_run(yard: Yard, run: str, kind: str) -> Path:
    """Directory of the replica that is alive."""
    query = (
        "SELECT p.directory FROM rollouts_replica AS p JOIN rollouts_run AS r ON r.id = p.run_id"
        " WHERE r.key = %s AND p.kind = %s AND p.ended_at IS NULL"
    )
    [(directory,)] = yard.sql(query, run, kind)
    return Path(directory)


def test_a_run_listens_on_nothing_that_others_reach(training: tuple[Yard, str]) -> None:
    yard, _run = training
    ours = {process.pid for process in yard.processes()}
    names = {process.pid: " ".join(process.cmdline()) for process in yard.processes()}
    assert (
        sum(
            "trainers.rl" in line
            and "bwrap" not in line
            and "torch.distributed.run" not in line
            and "shepherd" not in line
            for line in names.values()
        )
        == 2
    ), "two ranks are at work"
    port = int(yard.url.rpartition(":")[2])
    listening = [
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and connection.pid in ours
    ]
    assert set(listening) == {("127.0.0.1", port)}
    # As an attacker would: every port of the machine that somebody holds, whoever it is, is the one before the run.
    held = {line.split()[3] for line in subprocess.check_output(["ss", "-Hlnt"], text=True).splitlines()}
    assert not any("29400" in address for address in held)


@pytest.mark.parametrize("kind", ["trainer", "inference"])
def test_from_inside_nothing_of_the_installation_can_be_reached(training: tuple[Yard, str], kind: str) -> None:
    yard, run = training
    home = yard.home
    directory = of_the_run(yard, run, kind)
    spec = json.loads((directory / "spec.json").read_text())
    room = Sandbox(**spec["sandbox"])
    port = int(yard.url.rpartition(":")[2])
    other = "inference" if kind == "trainer" else "trainer"
    places: dict[str, Any] = {
        "files": [
            str(home.path),
            str(home.path / "secret_key"),
            str(home.path / "runs" / "another" / "weights" / "model.safetensors"),
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
        "pids": {str(process.pid): "".join(process.cmdline()).encode().hex() for process in yard.processes()},
    }
    if kind == "trainer":
        places["sockets"].append(str(next(home.run_dir.glob("serve/*/vllm.sock"))))
    else:
        places["sockets"].append(str(home.runs_socket))
    argv = [sys.executable, "-c", LOOK, json.dumps(places)]
    done = sandbox.run(room, argv, timeout_s=60, environ=confinement.variables(directory / "scratch"))
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    if seen["read"] == [str(home.path)]:
        seen["read"] = []  # a parent of what is shown, with nothing else in it
    assert seen == {"read": [], "connected": [], "processes": []}


@pytest.mark.skipif(os.geteuid() != 0, reason="ONLY ROOT can become the other account that this tries")
def test_another_account_reads_no_file_and_opens_no_socket(training: tuple[Yard, str]) -> None:
    yard, _run = training
    assert list(open_to_others(yard.home.path)) == []
    sockets = [str(yard.home.redis_socket), str(yard.home.runs_socket)]
    sockets += [str(yard.home.postgres_socket_dir / ".s.PGSQL.5432")]
    sockets += [str(path) for path in yard.home.run_dir.glob("serve/*/vllm.sock")]
    assert len(sockets) == 4
    files = [str(path) for path in yard.home.path.rglob("*") if path.is_file() and "postgres" not in str(path)][:500]
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


def test_a_run_that_is_stopped_leaves_nothing(training: tuple[Yard, str]) -> None:
    yard, run = training
    accounts = {process.pid: process.username() for process in yard.processes()}
    launched = [process for process in yard.processes() if "shepherd" in " ".join(process.cmdline())]
    launched += [child for shepherd in launched for child in shepherd.children(recursive=True)]
    assert len(launched) > 6, "shepherds, sandboxes, ranks and vLLM"
    if os.geteuid() == 0:
        assert "rollyard-run" in {accounts.get(process.pid) for process in launched}
    yard.rollyard("runs", "stop", run)
    until(lambda: yard.state(run) == "stopped", within_s=120, what="the stop")
    assert [process for process in launched if process.is_running()] == []
