"""A run that starts from a checkpoint of another: lineage, what it may ask for, and that the checkpoint stays."""

from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import Conflict, Invalid, NotFound
from rollouts.models import Run
from rollouts.services.runs import checkpoints, forks, life
from tests.rollouts import story
from trainers.config import resolve
from trainers.wire import CheckpointIn

pytestmark = pytest.mark.django_db
concurrent = pytest.mark.django_db(transaction=True)


def source_run(**overrides: Any) -> tuple[Run, int]:
    """A run with checkpoints of steps 1 to 3, and its trainer's epoch; it keeps the newest."""
    run, epoch = story.train(**{"trainer__keep_checkpoints": 1} | overrides)
    for step in (1, 2, 3):
        path = str(run.directory / "checkpoints" / f"step_{step}")
        found = CheckpointIn(step=step, path=path, manifest_sha256="b" * 64, size_bytes=5)
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=found)
    return run, epoch


def launch(fork: forks.Fork, **overrides: Any) -> Run:
    values = story.SMALL | {key.replace("__", "."): value for key, value in overrides.items()}
    resolved = resolve("reverse-text-rl", overrides=values | fork.overrides)
    return life.create(project=fork.checkpoint.run.project, user=None, resolved=resolved, actor="user:ada", fork=fork)


def test_a_fork_starts_from_a_model_of_its_own_and_names_where_it_is_from() -> None:
    source, _ = source_run()
    run = story.fresh(launch(forks.plan(source, step=2)))
    assert run.forked_from is not None
    assert (run.forked_from.run, run.forked_from.step, run.fork_optimizer) == (source, 2, False)
    assert Path(run.parsed.model.path) == run.directory / "weights" / "step_0"
    assert str(run.origins["model.path"]) == f"fork of {source.key}@2"


def test_without_a_step_the_newest_checkpoint_is_forked() -> None:
    source, _ = source_run()
    assert forks.plan(source).checkpoint.step == 3


def test_a_checkpoint_stays_while_a_run_is_forked_from_it() -> None:
    source, _ = source_run()
    launch(forks.plan(source, step=1))
    assert [each.step for each in checkpoints.delete_checkpoints(source)] == [2]
    assert [each.step for each in story.register(source).checkpoints] == [3, 1]


def test_a_checkpoint_that_is_deleted_meanwhile_is_not_forked() -> None:
    source, _ = source_run()
    fork = forks.plan(source, step=1)
    checkpoints.delete_checkpoints(source)
    with pytest.raises(Conflict, match=f"{source.key}@1 was deleted meanwhile"):
        launch(fork)
    assert Run.objects.count() == 1


@concurrent
def test_a_fork_and_the_deletion_of_its_checkpoint_never_both_happen() -> None:
    for _ in range(5):
        source, _ = source_run()
        fork = forks.plan(source, step=1)
        done = story.together(
            lambda fork=fork: launch(fork), lambda source=source: checkpoints.delete_checkpoints(source)
        )  # type: ignore[misc]
        forked, deleted = not isinstance(done[0], Exception), 1 in [each.step for each in done[1]]
        assert forked != deleted


def test_a_step_without_a_checkpoint_is_refused_with_those_there_are() -> None:
    source, _ = source_run()
    with pytest.raises(NotFound, match=r"no checkpoint of step 7\. Steps with one: 3, 2, 1"):
        forks.plan(source, step=7)


def test_a_name_is_a_run_or_a_run_and_a_step() -> None:
    assert forks.parse("abc") == ("abc", None)
    assert forks.parse("abc@12") == ("abc", 12)
    for wrong in ("abc@", "abc@last", "abc@-1"):
        with pytest.raises(Invalid):
            forks.parse(wrong)


def test_the_trainer_is_told_whose_optimizer_state_to_take() -> None:
    source, _ = source_run()
    with_state, without = launch(forks.plan(source, step=2, with_optimizer=True)), launch(forks.plan(source))
    offered = story.register(life.start(with_state)).optimizer_from
    assert offered is not None
    assert (offered.step, offered.path) == (2, str(source.directory / "checkpoints" / "step_2"))
    assert story.register(life.start(without)).optimizer_from is None


def test_an_adapter_that_the_weights_of_a_fork_have_in_them_is_not_put_on_top_again() -> None:
    source, _ = source_run(model__lora__rank=8, model__lora__path="/adapters/first")
    for path in ("/adapters/first/", str(source.directory / "weights" / "step_2")):
        with pytest.raises(Invalid) as refused:
            launch(forks.plan(source), model__lora__rank=8, model__lora__path=path)
        assert "has this adapter merged in already" in refused.value.fields["model.lora.path"]
    assert launch(forks.plan(source), model__lora__rank=8, model__lora__path="/adapters/second").forked_from
    assert launch(forks.plan(source), model__lora__rank=8).forked_from
    plain, _ = source_run()
    assert launch(forks.plan(plain), model__lora__rank=8, model__lora__path="/adapters/first").forked_from


@pytest.mark.parametrize(("of_source", "of_fork"), [(8, 0), (0, 8), (8, 8)])
def test_the_optimizer_state_of_an_adapter_is_refused(of_source: int, of_fork: int) -> None:
    source, _ = source_run(model__lora__rank=of_source)
    with pytest.raises(Invalid) as refused:
        launch(forks.plan(source, with_optimizer=True), model__lora__rank=of_fork)
    assert "fork_optimizer" in refused.value.fields
    assert launch(forks.plan(source), model__lora__rank=of_fork).forked_from is not None
