"""What is noted of a replica that is a job: what it has to compute on, where it runs and for how long it may."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from rollouts.models import Replica, ReplicaKind
from rollouts.states import ReplicaState
from tests.factories import make_run
from workers.fleet import accelerators, lifecycle
from workers.fleet.commands import Command
from workers.launchers.base import LaunchError, Observation
from workers.slurm import templates

pytestmark = pytest.mark.django_db
ON_JOBS = {"launcher.type": "slurm", "trainer.world_size": 8, "trainer.nodes": 2, "trainer.device": "cuda"}


@pytest.fixture
def template() -> Iterator[Path]:
    """The cluster's templates, as whoever keeps the installation writes them."""
    file = settings.HOME.path / templates.FILE
    file.write_text("[templates.default]\ncores = 24\nhours = 12\n")
    yield file
    file.unlink()


def job(kind: ReplicaKind = ReplicaKind.TRAINER, **overrides: Any) -> Replica:
    row = lifecycle.reserve(make_run(overrides=ON_JOBS | overrides), kind=kind, slot=0)
    Path(row.directory).mkdir(parents=True)
    return row


def refuse(*_: Any) -> None:
    raise LaunchError("nobody takes it")


@pytest.mark.parametrize(
    ("kind", "overrides", "has"),
    [
        (ReplicaKind.TRAINER, {}, (8, 48)),
        (ReplicaKind.TRAINER, {"launcher.trainer.cores": 10}, (8, 20)),
        (ReplicaKind.TRAINER, {"trainer.device": "cpu"}, (0, 48)),
        (ReplicaKind.INFERENCE, {}, (1, 24)),
        (ReplicaKind.INFERENCE, {"launcher.inference.cores": 4}, (1, 4)),
    ],
)
def test_a_job_has_the_gpus_and_cores_of_all_its_nodes(
    template: Path,
    kind: ReplicaKind,
    overrides: dict[str, Any],
    has: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accelerators, "serves_on_cpu", lambda **_: False)
    row = job(kind, **overrides)
    monkeypatch.setattr(lifecycle.launcher_of(row), "start", refuse)
    lifecycle.launch(row, Command(["true"], {}, [], []))
    row.refresh_from_db()
    assert ((row.gpus, row.cores), row.state) == (has, ReplicaState.LOST)


@pytest.mark.parametrize(
    ("environ", "has"),
    [
        ({}, (0, 1)),
        ({"OMP_NUM_THREADS": "3"}, (0, 3)),
        ({accelerators.VISIBLE: "2"}, (1, 1)),
        ({accelerators.VISIBLE: ""}, (0, 1)),
    ],
)
def test_a_server_of_this_machine_has_what_its_variables_give_it(
    environ: dict[str, str], has: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = lifecycle.reserve(make_run(), kind=ReplicaKind.INFERENCE, slot=0)
    monkeypatch.setattr(lifecycle.launcher_of(row), "start", refuse)
    lifecycle.launch(row, Command(["true"], environ, [], []))
    row.refresh_from_db()
    assert (row.gpus, row.cores) == has


@pytest.mark.parametrize(("overrides", "hours"), [({}, 12), ({"launcher.trainer.hours": 0.5}, 0.5)])
def test_a_job_that_has_begun_is_on_its_node_until_its_time_is_over(
    template: Path, overrides: dict[str, Any], hours: float
) -> None:
    row = job(**overrides)
    (Path(row.directory) / "agent.json").write_text(json.dumps({"token": str(row.token), "node": "n7"}))
    assert not lifecycle.has_begun(row, Observation(True, waiting="job 7 is queued"))
    assert (row.host, row.due_at) == ("", None)
    assert lifecycle.has_begun(row, Observation(True, heartbeat_age_s=2.0))
    assert row.begun_at is not None
    assert (row.host, row.due_at) == ("n7", row.begun_at + timedelta(hours=hours))
    assert row.load.heartbeat_at is not None


@pytest.mark.parametrize("written", ["", "[]", "{}", "[" * 100_000, '{"node": null'])
def test_what_an_agent_wrote_may_be_anything(written: str) -> None:
    row = job()
    (Path(row.directory) / "agent.json").write_text(written)
    assert lifecycle.has_begun(row, Observation(True))
    assert (row.host, row.due_at) == ("", None), "without a template nobody says for how long"
