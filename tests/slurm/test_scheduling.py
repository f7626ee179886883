"""What SLURM, its nodes and people do to a job: it waits, goes elsewhere or ends, and says why."""

from dataclasses import replace

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.jobs import START_S, begin, has_ended, number_of, running, wait_for
from tests.workers.test_launchers import POLITE
from tests.workers.waiting import eventually
from workers.launchers.base import End, JobSize, LaunchSpec
from workers.launchers.shepherd import HEARTBEAT_S
from workers.slurm.launcher import SlurmLauncher

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_job_cancelled_by_somebody_says_so(launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster) -> None:
    handle = begin(launcher, running(spec, POLITE), "up")
    cluster.ask("scancel", number_of(cluster, spec))
    assert wait_for(launcher, handle, has_ended).end is End.CANCELLED


def test_held_job_waits_and_says_for_whom(launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster) -> None:
    cluster.ask("scontrol", "update", "NodeName=n[1-3]", "State=DRAIN", "Reason=test")
    try:
        assert launcher.complaint("default", [JobSize(), JobSize(nodes=2)]) == "", "it may be queued, as here"
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


def test_heart_of_a_suspended_job_need_not_beat_and_beats_again(
    launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster
) -> None:
    handle = begin(launcher, running(spec, POLITE), "up")
    number = number_of(cluster, spec)
    wait_for(launcher, handle, lambda seen: seen.heartbeat_at is not None)
    cluster.ask("scontrol", "suspend", number)
    assert wait_for(launcher, handle, lambda seen: seen.heartbeat_at is None).alive
    wait_for(launcher, handle, lambda seen: (seen.heartbeat_age_s or 0.0) > 2 * HEARTBEAT_S)
    cluster.ask("scontrol", "resume", number)
    seen = wait_for(launcher, handle, lambda seen: seen.heartbeat_at is not None)
    wait_for(launcher, handle, lambda later: later.heartbeat_at not in (None, seen.heartbeat_at))


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


SAVING = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("up", flush=True)
told = pathlib.Path(os.environ["ROLLYARD_TIME_OVER_FILE"])
while not told.exists():
    time.sleep(0.05)
print("saved", flush=True)
"""


def test_job_is_told_a_minute_before_its_time_is_over_on_each_of_its_nodes_and_may_save(
    launcher: SlurmLauncher, spec: LaunchSpec, cluster: Cluster
) -> None:
    # On a single node the script is the agent; on several srun is, which tells every process of the job. Once the
    # command is at work its time is cut to a minute: the warning is due at once, and SLURM looks twice a minute.
    handle = launcher.start(running(spec, SAVING, need=JobSize(hours=1, nodes=2), grace_s=10.0))
    wait_for(launcher, handle, lambda _: launcher.logs(handle, 100).count("up") == 2)
    cluster.ask("scontrol", "update", f"JobId={number_of(cluster, spec)}", "TimeLimit=1")
    seen = wait_for(launcher, handle, has_ended, within_s=START_S + 80)
    assert (seen.exit_code, seen.end) == (0, End.TIME_LIMIT)
    assert "saved" in launcher.logs(handle, 100)
