"""What is brought to the node of a job before it begins."""

from pathlib import Path
from typing import Any

import pytest

from rollouts.models import Replica, ReplicaKind
from rollouts.services.runs import checkpoints, trainer_writes
from tests.rollouts import story
from tests.rollouts.runs.test_runs import checkpoint
from workers.fleet import jobs, lifecycle
from workers.fleet.commands import Command

pytestmark = pytest.mark.django_db


def test_a_trainer_is_brought_an_earlier_checkpoint_too_once_one_could_not_go_on_from_the_last(
    settings: Any, tmp_path: Path
) -> None:
    settings.ROLLYARD_RUNS_DIR = tmp_path
    run, epoch = story.train(max_steps=9)
    for step in (1, 2, 3):
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, step))

    lifecycle.reserve(run, kind=ReplicaKind.TRAINER, slot=0)

    def brought() -> list[str]:
        paths = [Path(each["path"]) for each in jobs.sent(Replica.objects.get(), Command([], {}, [], []))]
        return [path.name for path in paths if path.parent.name == "checkpoints"]

    assert brought() == ["step_3"]
    trainer_writes.count_trainer_restart(run)
    assert brought() == ["step_3", "step_2"]
