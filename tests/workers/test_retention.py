"""What of a run's files is there no longer when it has ended."""

from pathlib import Path
from typing import Any

import pytest

from rollouts.models import Checkpoint, PolicyVersion, Run
from rollouts.services.runs import checkpoints
from tests.rollouts import story
from tests.rollouts.runs.test_eval_runs import launch
from tests.rollouts.runs.test_runs import checkpoint
from workers.fleet import retention

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def runs_directory(tmp_path: Path, settings: Any) -> None:
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"


def write(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in ("model.safetensors", "tokenizer.json"):
        (directory / name).touch()
    return directory


def files(run: Run) -> set[str]:
    return {str(path.relative_to(run.directory)) for path in run.directory.rglob("*") if path.is_file()}


def test_what_was_half_written_or_half_deleted_goes_and_the_rest_stays() -> None:
    run, epoch = story.train(trainer__keep_checkpoints=1)
    for step in (1, 2):
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint(run, step))
        write(run.directory / "checkpoints" / f"step_{step}")
    # As by a reconciler that was killed before it had deleted the files.
    assert [each.step for each in checkpoints.delete_checkpoints(run)] == [1]
    for name in ("weights/step_3.partial-1", "checkpoints/step_3.partial-1", "checkpoints/step_0.deleting"):
        write(run.directory / name)
    write(run.directory / "weights" / "step_2")
    retention.let_go(run)
    kept = {"checkpoints/step_2", "weights/step_2"}
    assert files(run) == {f"{each}/{name}" for each in kept for name in ("model.safetensors", "tokenizer.json")}
    assert Checkpoint.objects.filter(run=run).count() == 2


def test_models_that_an_evaluation_made_of_checkpoints_go_and_their_tokenizers_stay() -> None:
    source, epoch = story.train(max_steps=9, evaluation={"problems": 2})
    checkpoints.add_checkpoint(source, epoch=epoch, checkpoint=checkpoint(source, 1))
    write(source.directory / "checkpoints" / "step_1")
    run = launch(f"{source.key}@1", problems=2, environments=[])
    for version in PolicyVersion.objects.filter(run=run):
        write(Path(version.path))
    assert files(run)
    retention.let_go(run)
    assert {Path(file).name for file in files(run)} == {"tokenizer.json"}
    assert files(source) == {"checkpoints/step_1/model.safetensors", "checkpoints/step_1/tokenizer.json"}
