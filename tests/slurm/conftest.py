"""One SLURM for the tests that start jobs, and one whose nodes share nothing with the control plane but the network."""

import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.yard import Yard, running_yard
from tests.slurm.cluster import Cluster, missing, running_cluster
from tests.workers.test_launchers import STAY
from tests.workers.waiting import eventually
from workers.launchers.base import LaunchSpec
from workers.launchers.processes import carriers
from workers.slurm import queue
from workers.slurm.launcher import SlurmLauncher

APART = """
[templates.default]
shared = false
environment = { OMP_NUM_THREADS = "1" }
"""
"""The `cluster.toml` of nodes that share nothing."""


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Three idle nodes; this process and what it starts are clients of theirs."""
    if complaint := missing():
        pytest.skip(f"NO SLURM: {complaint}")
    # A short way: munge's socket is in it. Open: jobs of every account look for it.
    with tempfile.TemporaryDirectory(prefix="rollyard-slurm-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)
        with running_cluster(Path(directory)) as cluster, pytest.MonkeyPatch.context() as patch:
            for name, value in cluster.environ.items():
                patch.setenv(name, value)
            yield cluster


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
def distant(apart: Cluster, hidden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """A Rollyard of which the nodes of that cluster see nothing; it plays no episodes, for workers are jobs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in apart.environ.items():
            patch.setenv(name, value)
        options = ["--concurrency", "0", "--lines-port", "auto"]
        with running_yard(tmp_path_factory.mktemp("yard") / "up.log", where=hidden, options=options) as yard:
            (yard.home.path / "cluster.toml").write_text(APART)
            yield yard


@pytest.fixture
def sharp_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the queue is nearly a new one: there is nobody to share it with."""
    monkeypatch.setattr(queue, "_VIEW_S", 0.2)


@pytest.fixture
def home() -> Iterator[Path]:
    # slurmstepd, which is no process of ours, may write a last line while the directory is removed.
    with tempfile.TemporaryDirectory(prefix="rollyard-jobs-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o711)
        yield Path(directory)


@pytest.fixture
def launcher(cluster: Cluster, home: Path, sharp_look: None) -> SlurmLauncher:
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
