"""A whole run as jobs of a real SLURM: trainer and inference servers on three nodes, whatever happens to them."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.yard import Yard, make_tiny_model, running_yard, until
from tests.lanes import long_lane
from tests.slurm.cluster import Cluster
from workers.launchers.processes import carriers, send

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.e2e, pytest.mark.vllm]

ON_JOBS = ["launcher.type=slurm", "launcher.template=whole", "inference.replicas=1", "evaluation=null"]
SMALL = ["batch.batch_size=32", "trainer.checkpoint_every=2"]
TEMPLATE = """
[templates.whole]
exclusive = true
environment = { OMP_NUM_THREADS = "1" }
"""
"""One job to a node, so that a node that is lost loses one."""


@pytest.fixture(scope="module")
def yard(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with running_yard(tmp_path_factory.mktemp("yard") / "up.log") as yard:
        yield yard


@pytest.fixture(autouse=True)
def template(yard: Yard) -> None:
    (yard.home.path / "cluster.toml").write_text(TEMPLATE)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "model")


def job_of(yard: Yard, cluster: Cluster, run: str, kind: str) -> list[str] | None:
    """The running job of a run's replica of a kind: number, state, reason, name, node."""
    rows = yard.sql(
        "SELECT p.token::text FROM rollouts_replica AS p JOIN rollouts_run AS r ON r.id = p.run_id"
        " WHERE r.key = %s AND p.kind = %s AND p.ended_at IS NULL AND p.answered_at IS NOT NULL",
        run,
        kind,
    )
    return next((job for (token,) in rows for job in cluster.jobs() if token in job[3] and job[1] == "RUNNING"), None)


@long_lane("what is shared over HTTP is always tested")
def test_run_finishes_whatever_is_cancelled_preempted_or_lost(yard: Yard, cluster: Cluster, model: Path) -> None:
    run = yard.rollyard("launch", "reverse-text-rl", f"model.path={model}", *ON_JOBS, *SMALL, "max_steps=9")["run"]
    until(lambda: yard.step(run) >= 2, within_s=120, what="the first steps")

    trainer = until(lambda: job_of(yard, cluster, run, "trainer"), within_s=60, what="a trainer at work")
    cluster.ask("scancel", trainer[0])
    until(lambda: yard.step(run) >= 4, within_s=120, what="steps of another trainer")

    server = until(lambda: job_of(yard, cluster, run, "inference"), within_s=60, what="a server at work")
    cluster.ask("scontrol", "update", f"NodeName={server[4]}", "State=DOWN", "Reason=test")
    cluster.end("slurmctld", signal.SIGKILL)
    cluster.start("slurmctld")
    until(lambda: yard.state(run) == "finished", within_s=240, what="the end of the run")
    cluster.resume()

    steps = yard.sql(
        "SELECT b.step FROM rollouts_batch AS b JOIN rollouts_run AS r ON r.id = b.run_id"
        " WHERE r.key = %s AND b.state = 'trained' ORDER BY b.step",
        run,
    )
    assert [step for (step,) in steps] == list(range(9))
    reasons = yard.sql(
        "SELECT p.kind, p.reason_code FROM rollouts_replica AS p JOIN rollouts_run AS r ON r.id = p.run_id"
        " WHERE r.key = %s AND p.state = 'lost'",
        run,
    )
    assert ("trainer", "cancelled_outside") in reasons
    assert "inference" in {kind for kind, _ in reasons}
    assert cluster.jobs() == [], "a run that is over leaves no job"


@long_lane("nodes that share nothing are always tested")
def test_trainer_over_two_nodes_starts_again_as_one_and_a_stop_leaves_no_job(
    yard: Yard, cluster: Cluster, model: Path
) -> None:
    spread = ["trainer.nodes=2", "trainer.world_size=2", "trainer.replicas=2", "max_steps=1000"]
    words = [f"model.path={model}", *ON_JOBS, *SMALL, *spread]
    run = yard.rollyard("launch", "reverse-text-rl", *words)["run"]
    until(lambda: yard.step(run) >= 3, within_s=120, what="the first steps")
    job = until(lambda: job_of(yard, cluster, run, "trainer"), within_s=60, what="a trainer at work")
    assert cluster.ask("squeue", "--noheader", f"--job={job[0]}", "--format=%D").strip() == "2"

    kill_one_rank_of(yard, run, node=1)
    until(lambda: yard.step(run) >= 6, within_s=120, what="steps of another trainer")
    ends = yard.sql(
        "SELECT p.state, p.reason_code FROM rollouts_replica AS p JOIN rollouts_run AS r ON r.id = p.run_id"
        " WHERE r.key = %s AND p.kind = 'trainer' ORDER BY p.id",
        run,
    )
    assert [state for state, _ in ends] == ["lost", "ready"]
    assert ends[0] == ("lost", "died")

    yard.rollyard("runs", "stop", run)
    until(lambda: yard.state(run) == "stopped", within_s=60, what="the stop")
    assert cluster.jobs() == []


def kill_one_rank_of(yard: Yard, run: str, *, node: int) -> None:
    """Kill the first rank of a node of a run's trainer."""
    [(token,)] = yard.sql(
        "SELECT p.token::text FROM rollouts_replica AS p JOIN rollouts_run AS r ON r.id = p.run_id"
        " WHERE r.key = %s AND p.kind = 'trainer' AND p.ended_at IS NULL",
        run,
    )
    ranks = carriers(f"{token}-{node}" if node else token) & carriers("0", "LOCAL_RANK")
    assert ranks, "no rank of the node was found"
    for rank in ranks:
        send(rank, signal.SIGKILL)


def test_doctor_looks_at_the_nodes_by_a_job_of_each_template(yard: Yard) -> None:
    file = yard.home.path / "cluster.toml"
    file.write_text("[templates.nowhere]\npartition = 'nowhere'\n[templates.odd]\ninterface = 'ib9'\n")
    done = yard.rollyard("doctor", "--cluster", code=1)
    found = {row["name"]: (row["status"], row["detail"]) for row in done}
    assert found["slurm"][0] == "ok"
    assert found["partition low"] == ("ok", "3 of 3 nodes are up")
    for name in ("home", "way here", "clock", "sandbox", "versions"):
        assert found[f"template default: {name}"][0] == "ok", found
    assert found["template nowhere"][0] == "fail"
    assert "invalid partition" in found["template nowhere"][1]
    assert "has no interface 'ib9'" in found["template odd: interface"][1]


def test_template_that_slurm_refuses_ends_the_run_with_its_words(yard: Yard, model: Path) -> None:
    file = yard.home.path / "cluster.toml"
    file.write_text(f"{TEMPLATE}\n[templates.nowhere]\npartition = 'nowhere'\n")
    words = [f"model.path={model}", *SMALL, "launcher.type=slurm", "launcher.template=nowhere"]
    run = yard.rollyard("launch", "reverse-text-rl", *words)["run"]
    until(lambda: yard.state(run) == "failed", within_s=30, what="the refusal")
    [(reason,)] = yard.sql("SELECT reason_params->>'error' FROM rollouts_run WHERE key = %s", run)
    assert "by the template nowhere" in reason
    assert "invalid partition" in reason
