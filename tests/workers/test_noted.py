"""What is noted of a replica that is a job: what it has to compute on, where it runs and for how long it may."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from rollouts.models import Replica, ReplicaKind, Run
from rollouts.states import ReplicaState
from tests.factories import make_policy_version, make_run
from workers.fleet import accelerators, jobs, lifecycle, training, tries
from workers.fleet.commands import Command
from workers.fleet.serving import Servers
from workers.launchers.base import End, LaunchError, LaunchSpec, Observation
from workers.slurm import queue, states, templates

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
    assert not lifecycle.has_begun(row, Observation(True, waiting="job 7 is queued", job="7"))
    assert (row.job_number, row.host, row.due_at) == ("7", "", None)
    assert lifecycle.has_begun(row, Observation(True, heartbeat_age_s=2.0, job="7", node="n7"))
    assert row.begun_at is not None
    assert (row.host, row.due_at) == ("n7", row.begun_at + timedelta(hours=hours))
    lifecycle.has_begun(row, Observation(True))
    assert (row.job_number, row.host) == ("7", "n7"), "while SLURM is away it is where it was"
    assert row.load.heartbeat_at is not None


def test_without_a_template_nobody_says_for_how_long() -> None:
    row = job()
    assert lifecycle.has_begun(row, Observation(True))
    assert (row.host, row.due_at) == ("", None)


@pytest.mark.parametrize(
    ("kind", "tend", "overrides", "end", "avoided"),
    [
        (ReplicaKind.INFERENCE, lambda run: Servers().tend(run), {}, End.DIED, ["n1", "n2"]),
        (ReplicaKind.TRAINER, training.tend, {"trainer.nodes": 1}, End.DIED, ["n1", "n2"]),
        (ReplicaKind.TRAINER, training.tend, {"trainer.nodes": 2}, End.DIED, []),
        (ReplicaKind.TRAINER, training.tend, {"trainer.nodes": 1}, End.TIME_LIMIT, []),
        (ReplicaKind.TRAINER, training.tend, {"trainer.nodes": 1}, End.PREEMPTED, []),
    ],
)
def test_what_did_not_start_on_a_node_is_tried_on_others(
    kind: ReplicaKind,
    tend: Callable[[Run], None],
    overrides: dict[str, Any],
    end: End,
    avoided: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run(overrides=ON_JOBS | overrides)
    make_policy_version(run, 0)
    started: list[LaunchSpec] = []
    monkeypatch.setattr(jobs.SLURM, "start", started.append)
    monkeypatch.setattr(jobs.SLURM, "sweep", lambda *_: [])
    monkeypatch.setattr(tries, "back_off_s", lambda *_, **__: 0.0)
    tend(run)
    for node in ("n2", "n1"):
        monkeypatch.setattr(jobs.SLURM, "poll", lambda _, node=node: Observation(False, 1, end=end, job="7", node=node))
        tend(run)
    assert [row.host for row in Replica.objects.filter(run=run, kind=kind)] == ["", "n1", "n2"]
    assert [list(spec.avoids) for spec in started] == [[], avoided[1:], avoided]


def test_a_job_whose_agent_never_spoke_is_cancelled_and_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    row = job()
    queued = {str(row.token): queue.Job("7", "RUNNING", "None", "n[1-2]")}
    (Path(row.directory) / templates.JOB_LOG).write_text("bash: module: command not found\n")
    monkeypatch.setattr(queue.Queue, "jobs", lambda _, *, anew=False: queued)
    monkeypatch.setattr(queue, "cancel", queued.pop)
    assert not lifecycle.has_begun(row, lifecycle.observe(row))
    monkeypatch.setattr(states, "START_S", 0.0)
    lifecycle.mark_lost(row, lifecycle.observe(row))
    row.refresh_from_db()
    assert (queued, row.state) == ({}, ReplicaState.LOST)
    assert row.state_reason.startswith("it was never started: job 7 has had n[1-2] for ")
    assert row.state_reason.endswith("runs a job that looks: bash: module: command not found")
