"""What tests of workers share: replicas that only pretend, with quick deadlines, and what sandboxes are tried on."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollouts.models import Replica
from tests.workers import bad_environments
from tests.workers.reconciling import STAY, train_with
from workers.fleet import inference, lifecycle, serving, tries
from workers.launchers import confinement


@pytest.fixture
def stand_ins(transactional_db: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Any) -> Iterator[None]:
    """Replicas that start at once and do as they are told; none of their processes is left at the end."""
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"
    stub = [sys.executable, "-m", "tests.workers.stub_server"]
    monkeypatch.setattr(inference, "argv", lambda model, socket, config, **_: [*stub, str(socket)])
    monkeypatch.setenv(confinement.READABLE_VARIABLE, str(Path(__file__).parents[1]))
    train_with(monkeypatch, STAY)
    for module, name, value in [
        (serving, "PROBE_EVERY_S", 0.2),
        (serving, "PROBE_PAUSE_S", 0.2),
        (serving, "PROBE_DEADLINE_S", 2.0),
        (lifecycle, "GRACE_S", 0.5),
    ]:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(tries, "back_off_s", lambda failures, *, longest_s: 0.0)
    yield
    for replica in Replica.objects.all():
        lifecycle.launcher_of(replica).sweep(str(replica.token), 0)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a secret, closed to others as ours are."""
    home = tmp_path / "home"
    home.mkdir(mode=0o711)
    (home / "secret_key").write_text("the key")
    (home / "secret_key").chmod(0o600)
    return home


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other accounts reach; those of pytest are closed."""
    path = Path(tempfile.mkdtemp(prefix="rollyard-open-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def bad_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of environments can import the bad ones, as if pip had installed them."""
    directory = tmp_path / "packages"
    directory.mkdir()
    shutil.copy(bad_environments.__file__, directory)
    directory.chmod(0o755)
    (directory / "bad_environments.py").chmod(0o644)
    monkeypatch.syspath_prepend(str(directory))
