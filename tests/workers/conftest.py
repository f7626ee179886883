"""What tests of the reconciler share: servers without a model, trainers without torch, quick deadlines."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollouts.models import Replica
from tests.workers.reconciling import STAY, train_with
from workers.fleet import inference, lifecycle, serving
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
    monkeypatch.setattr(lifecycle, "back_off_s", lambda failures, *, longest_s: 0.0)
    yield
    for replica in Replica.objects.all():
        lifecycle.launcher_of(replica).sweep(str(replica.token), 0)
