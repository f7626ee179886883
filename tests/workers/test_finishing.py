"""The end of a run that makes a model: its result is registered before anybody calls it finished."""

from typing import Any

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from rollouts.models import Batch, Model, PolicyVersion, Run
from rollouts.services import models
from rollouts.services.runs import life, trainer_writes
from rollouts.states import BatchState, RunState
from tests.factories import make_batch, make_run
from tests.model_files import write_model
from trainers.wire import StepAck
from workers import convergence
from workers.convergence import Convergence

pytestmark = pytest.mark.django_db


def trained_run() -> Run:
    """A supervised run that has done its steps and is to make the model `warm`."""
    overrides = {"register_as": "warm"}
    run = make_run(
        preset="reverse-text-sft", overrides=overrides, state=RunState.FINISHING, trainer_finished_at=timezone.now()
    )
    weights = write_model(run.directory / "weights" / "step_80")
    PolicyVersion.objects.create(run=run, version=80, path=str(weights))
    return run


def test_a_run_that_has_finished_has_registered_its_result() -> None:
    run = trained_run()
    Convergence().converge(run.pk)
    run.refresh_from_db()
    model = Model.objects.get()
    assert (run.state, model.name, model.run, model.step) == (RunState.FINISHED, "warm", run, 80)


def test_a_reconciler_that_dies_between_both_leaves_it_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained_run()

    class Died(BaseException):
        """As a kill would, it passes every handler."""

    def die(*_: Any, **__: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(life, "end", die)
        with pytest.raises(Died):
            Convergence().converge(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.FINISHING
    Convergence().converge(run.pk)
    run.refresh_from_db()
    assert (run.state, Model.objects.count()) == (RunState.FINISHED, 1)


def test_a_result_that_would_not_load_ends_the_run_with_the_reason() -> None:
    run = trained_run()
    (run.directory / "weights" / "step_80" / "tokenizer.json").unlink()
    Convergence().converge(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.FINISHED
    assert "without the model warm" in run.state_reason
    assert "no tokenizer" in run.state_reason
    assert not Model.objects.exists()


def test_a_result_whose_files_are_a_trap_ends_the_run_with_the_reason() -> None:
    run = trained_run()
    (run.directory / "weights" / "step_80" / "config.json").write_bytes(b"[" * 200_000)
    Convergence().converge(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.FINISHED
    assert "config.json cannot be read" in run.state_reason


def test_a_result_that_we_fail_to_register_does_not_keep_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained_run()

    def fail(*_: Any) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(models, "register_result", fail)
    monkeypatch.setattr(convergence, "BROKEN_DEADLINE_S", 0.0)
    Convergence().converge(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.FINISHED
    assert "RecursionError: too deep" in run.state_reason


def test_a_trainer_from_outside_that_forgets_to_finish_ends_its_run_all_the_same() -> None:
    run = make_run(preset="external-trainer", max_steps=1, epoch=2)
    batch = make_batch(run, step=0, groups=[], state=BatchState.DELIVERED)
    assert batch.epoch == 1, "it registered again before it acknowledged"
    trainer_writes.ack_step(run, epoch=2, step=0, ack=StepAck(metrics={}, batch_sha256=batch.sha256))
    Convergence().converge(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.RUNNING, "it may still announce its weights"
    Batch.objects.filter(pk=batch.pk).update(trained_at=Now() - trainer_writes.FORGOTTEN)
    Run.objects.filter(pk=run.pk).update(epoch=3)
    Convergence().converge(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.RUNNING, "who registered since may be at work"
    Run.objects.filter(pk=run.pk).update(epoch=2)
    Convergence().converge(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.FINISHED
