"""Runs on nodes that share nothing with the control plane but the network: files go to them and back."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.yard import Yard, make_tiny_model, running_yard, until
from tests.slurm.cluster import Cluster, missing, running_cluster
from tests.slurm.test_run import SMALL, job_of, kill_one_rank_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.e2e, pytest.mark.vllm, pytest.mark.timeout(600)]

TEMPLATE = """
[templates.default]
shared = false
environment = { OMP_NUM_THREADS = "1" }
"""


@pytest.fixture(scope="module")
def hidden() -> Iterator[Path]:
    """What the nodes do not see."""
    if complaint := missing():
        pytest.skip(f"NO SLURM: {complaint}")
    with tempfile.TemporaryDirectory(prefix="rollyard-here-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o711)
        yield Path(directory)


@pytest.fixture(scope="module")
def apart(hidden: Path) -> Iterator[Cluster]:
    """A cluster whose nodes have each a `/tmp` of its own, and so nothing of the control plane's."""
    with tempfile.TemporaryDirectory(prefix="rollyard-slurm-", dir="/var/tmp", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)
        with running_cluster(Path(directory), hidden=Path("/tmp")) as cluster:
            assert hidden.is_relative_to("/tmp")
            assert "rollyard" not in cluster.ask("srun", "--nodes=3", "--chdir=/", "ls", "-A", "/tmp")
            yield cluster


@pytest.fixture(scope="module")
def yard(apart: Cluster, hidden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in apart.environ.items():
            patch.setenv(name, value)
        options = ["--concurrency", "0", "--lines-port", "auto"]
        with running_yard(tmp_path_factory.mktemp("yard") / "up.log", where=hidden, options=options) as yard:
            (yard.home.path / "cluster.toml").write_text(TEMPLATE)
            yield yard


def test_run_ends_well_whatever_is_killed_cancelled_or_lost(yard: Yard, apart: Cluster, hidden: Path) -> None:
    model = make_tiny_model(hidden / "base" / "model")
    spread = ["trainer.nodes=2", "trainer.world_size=2", "inference.replicas=2"]
    words = [f"model.path={model}", "launcher.type=slurm", *spread, "evaluation=null", *SMALL]
    assert len(yard.rollyard("workers", "start", "2", "--hours", "0.5")["jobs"]) == 2
    run = yard.rollyard("launch", "reverse-text-rl", *words, "max_steps=9", "register_as=carried")["run"]
    until(lambda: yard.step(run) >= 2, within_s=180, what="the first steps")
    assert yard.kill_one("reconciler", 0.0) is not None
    until(lambda: yard.step(run) >= 3, within_s=120, what="a step that another reconciler carried")

    until(lambda: job_of(yard, apart, run, "trainer"), within_s=60, what="a trainer at work")
    kill_one_rank_of(yard, run, node=1)
    until(lambda: yard.step(run) >= 5, within_s=120, what="steps of another trainer")
    server = until(lambda: job_of(yard, apart, run, "inference"), within_s=60, what="a server at work")
    apart.ask("scontrol", "update", f"NodeName={server[4]}", "State=DOWN", "Reason=test")
    # So are the workers that were on it, and nobody but a person replaces them.
    if gone := 2 - sum("worker-" in job[3] and job[4] != server[4] for job in apart.jobs()):
        yard.rollyard("workers", "start", str(gone), "--hours", "0.5")
    until(lambda: yard.step(run) >= 7, within_s=120, what="steps without the node")
    apart.end("slurmctld", signal.SIGKILL)
    apart.start("slurmctld")
    until(lambda: yard.state(run) in {"finished", "failed"}, within_s=120, what="the end of the run")
    assert yard.state(run) == "finished"
    workers = yard.rollyard("workers", "list")
    assert len(workers) == len(apart.jobs()), "of the run no job is left"
    assert yard.rollyard("workers", "stop") == {"stopped": len(workers)}
    until(lambda: not apart.jobs(), within_s=60, what="the end of the workers")
    apart.resume()

    of_run = "JOIN rollouts_run AS r ON r.id = t.run_id WHERE r.key = %s"
    steps = yard.sql(f"SELECT t.step FROM rollouts_batch AS t {of_run} AND t.state = 'trained' ORDER BY t.step", run)
    assert [step for (step,) in steps] == list(range(9))
    lost = yard.sql(f"SELECT t.kind, t.reason_code FROM rollouts_replica AS t {of_run} AND t.state = 'lost'", run)
    # The other server may have brought the run to its end before this one was missed.
    assert "trainer" in {kind for kind, _ in lost}
    paths = yard.sql(f"SELECT t.path FROM rollouts_checkpoint AS t {of_run} AND t.state = 'complete'", run)
    assert paths
    assert all((Path(path) / "manifest.json").is_file() for (path,) in paths), "no row names files that are gone"
    yard.rollyard("checkpoints", "verify", run)
    directory = yard.home.path / "runs" / run
    assert not list(directory.rglob("*.partial"))
    logs = [file.read_text() for file in (directory / "replicas").glob("trainer-0-*/log.txt")]
    assert any("step 0: loss" in log for log in logs), "what a node wrote can be read here"
