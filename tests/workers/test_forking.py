"""Checkpoints made models in a sandbox."""

from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import StateConflict
from rollouts.models import Run
from rollouts.reasons import ReasonCode
from rollouts.services.runs import checkpoints, forks, life
from tests.rollouts import story
from trainers.config import resolve
from trainers.storage.durable import find_directory, write_directory
from trainers.wire import CheckpointIn
from workers.fleet import forking
from workers.fleet.lifecycle import UnrecoverableError
from workers.launchers import confinement

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(
        bool(confinement.complaint()), reason=f"NO SANDBOX, exports are not tried: {confinement.complaint()}"
    ),
]


def make_fork() -> Run:
    """A run that starts from a checkpoint in which nothing is."""
    source, epoch = story.train()
    place = source.directory / "checkpoints"
    done = write_directory(place, 1, lambda path: (path / "x").touch(), epoch=epoch, run=source.key)
    found = CheckpointIn(step=1, path=str(done.path), manifest_sha256=done.manifest_sha256, size_bytes=done.size_bytes)
    checkpoints.add_checkpoint(source, epoch=epoch, checkpoint=found)
    fork = forks.plan(source, step=1)
    resolved = resolve("reverse-text-rl", overrides=story.SMALL | fork.overrides)
    return life.create(project=source.project, user=None, resolved=resolved, actor="user:ada", fork=fork)


def test_an_export_that_exceeds_a_limit_fails_its_fork_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"
    monkeypatch.setenv("ROLLYARD_LIMIT_MEMORY_GIB", "0.001")  # less than Python needs to start
    run = make_fork()
    with pytest.raises(UnrecoverableError) as raised:
        forking.make_start(run, look=lambda: None)
    reason = raised.value.reason
    assert (reason.code, reason.params["what"]) == (ReasonCode.LIMIT_EXCEEDED, "bytes of memory")
    assert reason.params["used"] > reason.params["allowed"]
    assert find_directory(run.directory / "weights", 0) is None


def test_an_export_of_which_nobody_wants_anything_any_more_is_ended(tmp_path: Path, settings: Any) -> None:
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"
    run = make_fork()

    def look() -> None:
        raise StateConflict("it is to stop")

    with pytest.raises(StateConflict):
        forking.make_start(run, look=look)
    assert find_directory(run.directory / "weights", 0) is None
