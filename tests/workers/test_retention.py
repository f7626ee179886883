"""What of a run's files is there no longer when it has ended."""

from pathlib import Path
from typing import Any

import pytest

from rollouts.models import Checkpoint, PolicyVersion, Replica, Run
from rollouts.reasons import ReasonCode
from rollouts.services.runs import checkpoints, policies, replicas
from tests.factories import words
from tests.rollouts import story
from tests.rollouts.runs.test_eval_runs import launch
from tests.rollouts.runs.test_runs import checkpoint
from workers.fleet import retention, tries
from workers.fleet.lifecycle import UnrecoverableError
from workers.fleet.serving import Servers
from workers.launchers.base import scratch
from workers.launchers.local import LocalLauncher

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


def go_on(run: Run, epoch: int, version: int) -> None:
    """Train until a version is live."""
    write(Path(story.announce(run, epoch, version).path))
    assert story.publish(run) == version


def start_server(run: Run, monkeypatch: pytest.MonkeyPatch) -> Replica:
    """One that is given to a queue and waits there."""
    monkeypatch.setattr(LocalLauncher, "start", lambda *_: None)
    monkeypatch.setattr(tries, "back_off_s", lambda *_, **__: 0.0)
    Servers().tend(story.fresh(run))
    return Replica.objects.order_by("-id")[0]


def test_weights_that_a_server_was_started_with_stay_until_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    run, epoch = story.train(trainer__keep_weights=1, max_steps=9)
    go_on(run, epoch, 1)
    server = start_server(run, monkeypatch)
    for version in (2, 3, 4):
        go_on(run, epoch, version)
    retention.prune(run)
    assert {path.name for path in (run.directory / "weights").iterdir()} == {"step_1", "step_3", "step_4"}
    replicas.ready(server, loaded_version=4)
    retention.prune(run)
    assert {path.name for path in (run.directory / "weights").iterdir()} == {"step_3", "step_4"}


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_server_is_believed_that_its_input_is_at_fault_unless_that_was_removed(
    is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, epoch = story.train(max_steps=9)
    go_on(run, epoch, 1)
    server = start_server(run, monkeypatch)
    scratch(Path(server.directory)).mkdir(parents=True, exist_ok=True)
    (scratch(Path(server.directory)) / "fault.json").write_text('{"message": "there is no config.json"}')
    replicas.lost(server, exit_code=1, reason=words("died"))
    go_on(run, epoch, 2)
    if is_gone:
        policies.forget_files([PolicyVersion.objects.get(run=run, version=1)])
        assert start_server(run, monkeypatch).pk > server.pk
    else:
        with pytest.raises(UnrecoverableError) as caught:
            start_server(run, monkeypatch)
        assert caught.value.reason.code == ReasonCode.SERVER_INPUT
