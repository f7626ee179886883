"""A trainer is taken for hung once it has not called for long, whatever it trains and waits for."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.db.models import F
from django.utils import timezone

from rollouts.doors.native.trainer import fetch
from rollouts.models import ApiToken, Replica, ReplicaKind, Run
from rollouts.reasons import ReasonCode
from rollouts.selectors.runs import health
from rollouts.services.runs import trainer_writes
from rollouts.states import ReplicaState
from tests.rollouts import story
from trainers.wire import StepAck
from workers.fleet import lifecycle, serving, training, tries
from workers.fleet.commands import Slot
from workers.launchers.base import LauncherAway, Observation
from workers.launchers.local import LocalLauncher

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def alive(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> Mock:
    """Its shepherd's heart beats, whatever the trainer does."""
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"
    launcher = Mock(LocalLauncher)
    launcher.poll.return_value = Observation(True, heartbeat_age_s=1.0)
    launcher.stop.return_value = Observation(False, -9)
    monkeypatch.setattr(lifecycle, "launcher_of", lambda _: launcher)
    return launcher


def silent(run: Run) -> tuple[Replica, int]:
    """A trainer that registered and has not called since, and its epoch."""
    training.tend(run)
    epoch = story.register(run).epoch
    long_ago = timezone.now() - timedelta(seconds=training.STEP_DEADLINE_S + 60)
    Replica.objects.update(answered_at=long_ago)
    return Replica.objects.get(run=run), epoch


def tended(run: Run, replica: Replica) -> Replica:
    training.tend(story.fresh(run))
    return Replica.objects.get(pk=replica.pk)


@pytest.mark.parametrize("launch", [story.launch, story.launch_supervised])
def test_a_trainer_that_does_not_call_is_replaced(launch: Any) -> None:
    run = launch()
    hung, _ = silent(run)
    ended = tended(run, hung)
    assert (ended.state, ended.reason_code) == (ReplicaState.LOST, ReasonCode.EJECTED_STUCK)
    assert story.fresh(run).trainer_restarts == 1


def test_a_trainer_has_the_time_that_its_files_take(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").touch()
    os.truncate(model / "model.safetensors", 140 * 10**9)
    run = story.launch(model__path=str(model))
    writing, _ = silent(run)
    assert tended(run, writing).state == ReplicaState.READY
    Replica.objects.update(answered_at=timezone.now() - timedelta(seconds=training.step_deadline_s(run) + 60))
    assert tended(run, writing).reason_code == ReasonCode.EJECTED_STUCK


def test_a_trainer_that_was_suspended_has_the_time_for_its_step_anew(
    alive: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = story.launch()
    alive.poll.return_value = Observation(True, heartbeat_age_s=7200.0)
    suspended, _ = silent(run)
    assert tended(run, suspended).state == ReplicaState.READY
    alive.poll.return_value = Observation(True, heartbeat_age_s=1.0)
    assert tended(run, suspended).state == ReplicaState.READY, "it was resumed"
    later = time.monotonic() + training.step_deadline_s(run) + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert tended(run, suspended).reason_code == ReasonCode.EJECTED_STUCK


def test_a_launcher_that_does_not_answer_costs_a_run_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Mock(LocalLauncher, start=Mock(side_effect=LauncherAway("Unable to contact slurm controller")))
    monkeypatch.setattr(lifecycle, "launcher_of", lambda _: away)
    run = story.launch()
    for _ in range(training.MAX_RESTARTS + 1):
        training.tend(story.fresh(run))
        training.tend(story.fresh(run))  # too soon
        Replica.objects.update(ended_at=timezone.now() - timedelta(seconds=tries.AWAY_S))
    assert set(Replica.objects.values_list("state", "reason_code")) == {("lost", ReasonCode.LAUNCHER_AWAY)}
    assert Replica.objects.count() == training.MAX_RESTARTS + 1
    assert story.fresh(run).trainer_restarts == 0
    slot = Slot("", 0)
    for _ in range(serving.MAX_FAILED_STARTS + 1):
        serving._start(run, slot)
        Replica.objects.update(ended_at=timezone.now() - timedelta(seconds=tries.AWAY_S))
    assert Replica.objects.filter(kind=ReplicaKind.INFERENCE).count() == serving.MAX_FAILED_STARTS + 1


def test_what_is_put_off_for_long_is_tried_less_often_leaves_nothing_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = "SLURM does not take the job now: job submit limit"
    monkeypatch.setattr(lifecycle, "launcher_of", lambda _: Mock(start=Mock(side_effect=LauncherAway(words))))
    run, look = story.launch(), timedelta(minutes=1)
    for _ in range(3 * 60):
        training.tend(story.fresh(run))
        Replica.objects.update(ended_at=F("ended_at") - look)
    assert 36 <= Replica.objects.count() < 70, "every five minutes, once it has lasted"
    assert not any(Path(replica.directory).exists() for replica in Replica.objects.all())
    assert not ApiToken.objects.filter(run=run).exists()
    assert words in health(story.fresh(run)).sentence


def test_a_trainer_that_waits_for_a_batch_goes_on() -> None:
    run = story.launch()
    waiting, epoch = silent(run)
    fetch(run, 0, epoch=str(epoch - 1), query="")
    assert Replica.objects.get().answered_at == waiting.answered_at, "that was the one before it"
    fetch(run, 0, epoch=str(epoch), query="")
    assert tended(run, waiting).state == ReplicaState.READY


def test_a_trainer_whose_steps_come_goes_on() -> None:
    run = story.launch_supervised()
    busy, epoch = silent(run)
    trainer_writes.ack_step(run, epoch=epoch, step=0, ack=StepAck(metrics={}))
    assert tended(run, busy).state == ReplicaState.READY
