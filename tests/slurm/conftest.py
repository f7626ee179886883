"""One SLURM for the tests that start jobs."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing, running_cluster


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
