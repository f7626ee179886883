"""For tests that start a sandbox as another account."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other accounts reach; those of pytest are closed."""
    path = Path(tempfile.mkdtemp(prefix="rollyard-open-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
