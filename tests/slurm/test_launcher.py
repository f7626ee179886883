"""Jobs of a real SLURM: whatever happens to one, what is said of it is right, and nothing of it stays."""

import json
import os
import shutil
import signal
import uuid
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.moving import content_of, files_below
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import START_S, begin, has_ended, pid_of, running, wait_for
from tests.workers.test_launchers import FAMILY, POLITE, STAY, STUBBORN
from tests.workers.waiting import eventually
from workers.launchers.base import End, Handle, JobSize, LaunchError, LaunchSpec, sockets_of
from workers.launchers.processes import carriers, send
from workers.slurm.launcher import SlurmLauncher

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


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
    kept = b"".join(map(content_of, files_below(spec.directory)))
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
