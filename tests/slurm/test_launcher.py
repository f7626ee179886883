"""Jobs of a real SLURM: whatever happens to one, what is said of it is right, and nothing of it stays."""

import json
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.slurm.cluster import Cluster
from tests.workers.test_launchers import FAMILY, POLITE, STAY, STUBBORN
from tests.workers.waiting import eventually
from workers.launchers.base import End, Handle, JobSize, LaunchError, LaunchSpec, Observation, sockets_of
from workers.launchers.processes import carriers, send
from workers.slurm import queue
from workers.slurm.launcher import SlurmLauncher

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

START_S = 30.0


@pytest.fixture(autouse=True)
def sharp_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the queue is nearly a new one: there is nobody to share it with."""
    monkeypatch.setattr(queue, "_VIEW_S", 0.2)


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rollyard-jobs-") as directory:
        os.chmod(directory, 0o711)
        yield Path(directory)


@pytest.fixture
def launcher(cluster: Cluster, home: Path) -> SlurmLauncher:
    return SlurmLauncher(home)


@pytest.fixture
def spec(home: Path, cluster: Cluster) -> Iterator[LaunchSpec]:
    token = str(uuid.uuid4())
    yield LaunchSpec(
        token,
        home / "replica",
        [sys.executable, "-c", STAY],
        grace_s=0.5,
        template="default",
        ours=[home],
        key=f"sesame {token}",
        url="http://127.0.0.1:9",
    )
    SlurmLauncher(home).sweep(token, 10)
    assert not any(token in job[3] for job in cluster.jobs())
    eventually(lambda: not carriers(token), what="no process of the job is left")


def running(spec: LaunchSpec, program: str, **changes: Any) -> LaunchSpec:
    return replace(spec, argv=[sys.executable, "-c", program], **changes)


def begin(launcher: SlurmLauncher, spec: LaunchSpec, word: str = "") -> Handle:
    """Start it, and wait until it is at work and has said so."""
    handle = launcher.start(spec)
    wait_for(launcher, handle, lambda seen: not seen.waiting and word in launcher.logs(handle, 100))
    return handle


def wait_for(
    launcher: SlurmLauncher, handle: Handle, holds: Callable[[Observation], bool], within_s: float = START_S
) -> Observation:
    seen: list[Observation] = []

    def look() -> bool:
        seen.append(launcher.poll(handle))
        return holds(seen[-1])

    try:
        eventually(look, within_s=within_s)
    except AssertionError:
        raise AssertionError(f"last seen: {seen[-1]}; {launcher.logs(handle, 20)}") from None
    return seen[-1]


def has_ended(seen: Observation) -> bool:
    return not seen.alive


def number_of(cluster: Cluster, spec: LaunchSpec) -> str:
    return next(job[0] for job in cluster.jobs() if spec.token in job[3])


def pid_of(spec: LaunchSpec, file: str, key: str) -> int:
    pid: int = json.loads((spec.directory / file).read_text())[key]
    return pid


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code_and_log_of_a_job_that_ends_are_kept(launcher: SlurmLauncher, spec: LaunchSpec, code: int) -> None:
    handle = launcher.start(running(spec, f"print('last words'); raise SystemExit({code})"))
    seen = wait_for(launcher, handle, has_ended)
    assert (seen.exit_code, seen.end) == (code, End.DIED)
    assert launcher.logs(handle, 5) == "last words"


def test_job_that_works_shows_a_heartbeat_and_is_among_the_living(launcher: SlurmLauncher, spec: LaunchSpec) -> None:
    handle = begin(launcher, spec)
    seen = wait_for(launcher, handle, lambda seen: seen.heartbeat_age_s is not None)
    assert seen.alive
    assert spec.token in launcher.living()


def test_secrets_of_a_job_reach_the_command_and_no_file(launcher: SlurmLauncher, spec: LaunchSpec) -> None:
    begin(
        launcher,
        running(
            spec, f"import os; print(os.environ['TAUGHT'][::-1], flush=True)\n{STAY}", environ={"TAUGHT": "hush-hush"}
        ),
        "hsuh",
    )
    kept = b"".join(path.read_bytes() for path in spec.directory.rglob("*") if path.is_file())
    assert b"hush-hush" not in kept


def test_program_that_is_not_there_ends_the_job_with_its_reason(launcher: SlurmLauncher, spec: LaunchSpec) -> None:
    handle = launcher.start(replace(spec, argv=["/nowhere/at-all"]))
    assert wait_for(launcher, handle, has_ended).exit_code == 1
    assert "there is no program /nowhere/at-all" in launcher.logs(handle, 5)


def test_stop_lets_the_command_end_by_itself(launcher: SlurmLauncher, spec: LaunchSpec) -> None:
    handle = begin(launcher, running(spec, POLITE, grace_s=10.0), "up")
    seen = launcher.stop(handle, deadline_s=20)
    assert (seen.alive, seen.exit_code, seen.end) == (False, 0, End.ASKED)


def test_stop_leaves_nothing_of_a_deaf_family(launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster) -> None:
    handle = begin(launcher, running(spec, FAMILY), "deaf")
    assert not launcher.stop(handle, deadline_s=20).alive
    assert cluster.jobs() == []
    eventually(lambda: not carriers(spec.token))


def test_stop_while_slurm_is_away_ends_the_command_all_the_same(
    launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster
) -> None:
    handle = begin(launcher, running(spec, POLITE), "up")
    cluster.end("slurmctld")
    try:
        seen = launcher.poll(handle)
        assert seen.alive, "that SLURM is away says nothing of a job"
        seen = launcher.stop(handle, deadline_s=10)
        assert (seen.alive, seen.exit_code, seen.end) == (False, 0, End.ASKED)
    finally:
        cluster.start("slurmctld")
        eventually(cluster.has_idle_nodes, within_s=START_S)


def test_killed_agent_takes_its_command_along(launcher: SlurmLauncher, spec: LaunchSpec) -> None:
    handle = begin(launcher, running(spec, STUBBORN), "deaf")
    send(pid_of(spec, "agent.json", "pid"), signal.SIGKILL)
    assert not wait_for(launcher, handle, has_ended).alive
    eventually(lambda: not carriers(spec.token), within_s=START_S)


def test_what_a_killed_agent_left_on_its_node_is_taken_away_by_the_next(
    launcher: SlurmLauncher, spec: LaunchSpec
) -> None:
    first, second = sockets_of(spec.key), sockets_of(f"{spec.key} too")
    handle = begin(launcher, replace(spec, serves=first / "serve" / "http.sock"))
    assert first.is_dir()
    send(pid_of(spec, "agent.json", "pid"), signal.SIGKILL)
    wait_for(launcher, handle, has_ended)
    other = replace(spec, token=str(uuid.uuid4()), directory=spec.directory.with_name("other"), key=f"{spec.key} too")
    handle = begin(launcher, replace(other, serves=second / "serve" / "http.sock"))
    assert second.is_dir()
    assert not first.exists()
    launcher.stop(handle, START_S)
    wait_for(launcher, handle, has_ended)
    eventually(lambda: not second.exists(), within_s=START_S)


def test_killed_shepherd_ends_the_job(launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster) -> None:
    handle = begin(launcher, running(spec, STUBBORN), "deaf")
    send(pid_of(spec, "started.json", "pid"), signal.SIGKILL)
    assert wait_for(launcher, handle, has_ended).end is End.UNWATCHED
    eventually(lambda: not cluster.jobs(), within_s=START_S)


def test_job_cancelled_by_somebody_says_so(launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster) -> None:
    handle = begin(launcher, running(spec, POLITE), "up")
    cluster.ask("scancel", number_of(cluster, spec))
    assert wait_for(launcher, handle, has_ended).end is End.CANCELLED


def test_held_job_waits_and_says_for_whom(launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster) -> None:
    cluster.ask("scontrol", "update", "NodeName=n[1-3]", "State=DRAIN", "Reason=test")
    try:
        handle = launcher.start(spec)
        number = number_of(cluster, spec)
        seen = wait_for(launcher, handle, lambda seen: "drained" in seen.waiting)
        assert seen.waiting.startswith(f"job {number} is queued: the nodes that it")
        cluster.ask("scontrol", "hold", number)
        seen = wait_for(launcher, handle, lambda seen: "holds it" in seen.waiting)
        assert f"scontrol release {number}" in seen.waiting
        assert launcher.stop(handle, deadline_s=10).end is End.CANCELLED
    finally:
        cluster.resume()


def test_job_avoids_nodes_while_there_are_others(launcher: SlurmLauncher, spec: LaunchSpec) -> None:
    handle = begin(launcher, running(spec, POLITE, avoids=["n1", "n2"]), "up")
    assert launcher.poll(handle).node == "n3"
    launcher.stop(handle, deadline_s=10)


@pytest.mark.parametrize("avoids", [["n1", "n2", "n3"], ["a node that was taken out of the cluster"]])
def test_job_is_queued_whatever_it_avoids(launcher: SlurmLauncher, spec: LaunchSpec, avoids: list[str]) -> None:
    begin(launcher, running(spec, POLITE, avoids=avoids), "up")


def test_job_goes_to_a_node_that_it_avoids_when_no_other_came_free(
    launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.ask("scontrol", "update", "NodeName=n[2-3]", "State=DRAIN", "Reason=test")
    try:
        handle = launcher.start(running(spec, POLITE, avoids=["n1"]))
        seen = wait_for(launcher, handle, lambda seen: "drained" in seen.waiting)
        assert "it is not to have n1" in seen.waiting
        monkeypatch.setattr("workers.slurm.launcher._AVOIDING_S", 0.0)
        assert wait_for(launcher, handle, lambda seen: not seen.waiting).node == "n1"
        launcher.stop(handle, deadline_s=10)
    finally:
        cluster.resume()


def test_preempted_job_says_so_and_is_not_put_back(launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster) -> None:
    (spec.directory.parent / "cluster.toml").write_text("[templates.whole]\nexclusive = true\n")
    handle = begin(launcher, running(replace(spec, template="whole"), POLITE, grace_s=5.0), "up")
    cluster.ask("sbatch", "--partition=high", "--nodes=3", "--exclusive", "--wrap=sleep 60", "--output=/dev/null")
    try:
        assert wait_for(launcher, handle, has_ended).end is End.PREEMPTED
        assert not any(spec.token in job[3] for job in cluster.jobs())
    finally:
        cluster.ask("scancel", "--name=wrap")
        eventually(lambda: not cluster.jobs(), within_s=START_S)


def test_job_of_a_node_that_is_gone_says_so(launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster) -> None:
    handle = begin(launcher, running(spec, POLITE), "up")
    node = next(job[4] for job in cluster.jobs() if spec.token in job[3])
    cluster.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        assert wait_for(launcher, handle, has_ended).end is End.NODE_FAILED
    finally:
        cluster.resume()


def test_job_is_told_a_minute_before_its_time_is_over_on_each_of_its_nodes(
    launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster
) -> None:
    # On a single node the script is the agent; on several srun is, which tells every process of the job. Once the
    # command is at work its time is cut to a minute: the warning is due at once, and SLURM looks twice a minute.
    handle = launcher.start(running(spec, POLITE, need=JobSize(hours=1, nodes=2), grace_s=10.0))
    wait_for(launcher, handle, lambda _: launcher.logs(handle, 100).count("up") == 2)
    cluster.ask("scontrol", "update", f"JobId={number_of(cluster, spec)}", "TimeLimit=1")
    seen = wait_for(launcher, handle, has_ended, within_s=START_S + 35)
    assert (seen.exit_code, seen.end) == (0, End.TIME_LIMIT)


@pytest.mark.parametrize(
    ("template", "gpus", "said"),
    [
        ("partition = 'nowhere'", 0, "invalid partition"),
        ("constraint = 'no such'", 0, "Invalid feature"),
        ("gres = 'tpu'", 1, "Invalid generic resource"),
        ("partition = 3", 0, "Input should be a valid string"),
        ("partitions = 'low'", 0, "Extra inputs are not permitted"),
        ("environment = { 'A; rm' = '' }", 0, "is no name of a variable"),
    ],
)
def test_template_that_is_refused_says_why(
    launcher: SlurmLauncher, home: Path, template: str, gpus: int, said: str
) -> None:
    (home / "cluster.toml").write_text(f"[templates.wrong]\n{template}\n")
    assert said in launcher.complaint("wrong", [JobSize(gpus=gpus)])


def test_more_than_a_node_has_is_refused_before_it_is_queued(launcher: SlurmLauncher) -> None:
    assert "not available" in launcher.complaint("default", [JobSize(cores=64)])


def test_job_that_slurm_refuses_was_not_started(launcher: SlurmLauncher, spec: LaunchSpec, home: Path) -> None:
    (home / "cluster.toml").write_text("[templates.wrong]\npartition = 'nowhere'\n")
    with pytest.raises(LaunchError, match=r"SLURM refused the job: .*invalid partition"):
        launcher.start(replace(spec, template="wrong"))


def test_shell_in_a_template_stays_text(launcher: SlurmLauncher, spec: LaunchSpec, home: Path) -> None:
    traces = home / "traces"
    traces.mkdir(mode=0o777)
    shell = f"x$(touch {traces}/a)`touch {traces}/b`'; touch {traces}/c; echo '\\\"$HOME"
    quoted = json.dumps(shell)
    (home / "cluster.toml").write_text(f"[templates.hostile]\nenvironment = {{ NCCL_DEBUG = {quoted} }}\n")
    said = running(spec, f"import os; print(os.environ['NCCL_DEBUG'] == {shell!r}, flush=True)\n{STAY}")
    begin(launcher, replace(said, template="hostile"), "True")
    assert list(traces.iterdir()) == []


def test_directory_with_what_slurm_or_a_shell_reads_is_only_a_name(
    launcher: SlurmLauncher, spec: LaunchSpec, home: Path
) -> None:
    odd = home / "100%j $(touch x)'s"
    handle = begin(launcher, replace(spec, directory=odd / "replica"))
    assert launcher.poll(handle).alive
    assert [path.name for path in home.iterdir()] == [odd.name]


def test_door_of_a_server_asks_for_its_key(launcher: SlurmLauncher, spec: LaunchSpec) -> None:
    serves = sockets_of(spec.key) / "serve" / "http.sock"
    serving = f"""
import http.server, os, socketserver
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body[::-1])
    def address_string(self):
        return ''
print('serves', flush=True)
socketserver.UnixStreamServer({str(serves)!r}, Answer).serve_forever()
"""
    ready = running(spec, serving, serves=serves, writes=[serves.parent])
    handle = begin(launcher, ready, "serves")
    url = launcher.poll(handle).base_url
    answer = httpx.post(url, content=b"abc", headers={"Authorization": f"Bearer {spec.key}"})
    assert (answer.status_code, answer.content) == (200, b"cba")
    for key in ({}, {"Authorization": f"Bearer {spec.key[:-1]}"}, {"Authorization": spec.key}):
        assert httpx.post(url, content=b"abc", headers=key).status_code == 401


def test_job_takes_no_directory_that_somebody_made_before_it(launcher: SlurmLauncher, spec: LaunchSpec) -> None:
    taken = sockets_of(spec.key)
    taken.mkdir(mode=0o777)
    try:
        handle = launcher.start(replace(spec, serves=taken / "serve" / "http.sock"))
        wait_for(launcher, handle, has_ended)
        assert "FileExistsError" in launcher.logs(handle, 5)
        assert list(taken.iterdir()) == []
    finally:
        taken.rmdir()


def test_queue_that_forgets_a_job_is_not_believed_at_once(
    launcher: SlurmLauncher, spec: LaunchSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = begin(launcher, spec)
    lying = tmp_path / "squeue"
    lying.write_text("#!/bin/sh\nexit 0\n")
    lying.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        assert shutil.which("squeue") == str(lying)
        wait_for(launcher, handle, lambda _: spec.token not in launcher._queue.jobs())
        assert launcher.poll(handle).alive


def test_submission_that_was_not_answered_is_found_in_the_queue(
    launcher: SlurmLauncher, spec: LaunchSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("sbatch")
    lost = tmp_path / "sbatch"
    lost.write_text(f'#!/bin/sh\n{real} "$@" >/dev/null\necho "Socket timed out on send/recv operation" >&2\nexit 1\n')
    lost.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        handle = launcher.start(spec)
    wait_for(launcher, handle, lambda seen: not seen.waiting and seen.alive)


def test_job_that_was_never_given_to_slurm_was_never_started(launcher: SlurmLauncher, spec: LaunchSpec) -> None:
    spec.directory.mkdir()
    handle = Handle(spec.token, spec.directory)
    launcher._absent_since[spec.token] = -1e6
    assert launcher.poll(handle).end is End.UNSTARTED
