"""Checkpoints, as a person lists, verifies, exports and forks them."""

import json
from pathlib import Path

import pytest

from rollouts.models import Checkpoint, Run
from rollouts.services.runs import checkpoints
from tests.controlplane.command_line import Rollyard
from tests.rollouts import story
from trainers.storage.durable import write_directory
from trainers.wire import CheckpointIn
from workers.fleet import forking
from workers.launchers import accounts

pytestmark = [pytest.mark.slow, pytest.mark.django_db]
commits = pytest.mark.django_db(transaction=True)
"""For what a process of its own is to see."""


@pytest.fixture
def source(tmp_path: Path, settings: pytest.FixtureRequest) -> Run:
    """A run with checkpoints of steps 1 and 2, of which no model can be made."""
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"  # type: ignore[attr-defined]
    run, epoch = story.train()
    for step in (1, 2):
        done = write_directory(
            run.directory / "checkpoints",
            step,
            lambda path: (path / "x").write_text("data"),
            epoch=epoch,
            run=run.key,  # type: ignore[arg-type,return-value]
        )
        found = CheckpointIn(
            step=step, path=str(done.path), manifest_sha256=done.manifest_sha256, size_bytes=done.size_bytes
        )
        checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=found)
    return run


@commits
def test_checkpoints_are_listed_with_their_forks(rollyard: Rollyard, source: Run) -> None:
    forked = rollyard.process(
        "launch", "reverse-text-rl", "--fork-from", f"{source.key}@1", "--fork-optimizer", "--json"
    )
    assert forked.returncode == 0, forked.stderr
    fork = Run.objects.get(key=json.loads(forked.stdout)["run"])
    assert fork.forked_from is not None
    assert (fork.forked_from.step, fork.fork_optimizer) == (1, True)
    rows = json.loads(rollyard.process("checkpoints", "list", source.key, "--json").stdout)
    assert [(row["step"], row["state"], row["forks"]) for row in rows] == [
        (2, "complete", []),
        (1, "complete", [fork.key]),
    ]
    assert f"forked by {fork.key}" in rollyard("checkpoints", "list", source.key).stdout


@commits
def test_a_damaged_checkpoint_is_found_and_neither_exported_nor_hidden(
    rollyard: Rollyard,
    source: Run,
    tmp_path: Path,
) -> None:
    assert rollyard("checkpoints", "verify", source.key).stdout == "checkpoints verified: 2, damaged: 0\n"
    (source.directory / "checkpoints" / "step_1" / "x").write_text("dada")
    verified = rollyard.process("checkpoints", "verify", source.key, "--json")
    assert verified.returncode == 1
    answer = json.loads(verified.stdout)
    assert (answer["checkpoints"], list(answer["faults"])) == (2, ["1"])
    assert rollyard("checkpoints", "verify", f"{source.key}@2").returncode == 0
    exported = rollyard.process("checkpoints", "export", f"{source.key}@1", "-o", tmp_path / "out")
    assert (exported.returncode, exported.stdout) == (1, "")
    assert "does not have its SHA-256" in exported.stderr
    assert not list(tmp_path.glob("out*"))


def test_what_is_not_there_is_refused_with_what_is(rollyard: Rollyard, source: Run, tmp_path: Path) -> None:
    said = f"Run {source.key} has no checkpoint of step 9. Steps with one: 2, 1.\n"
    exported = rollyard("checkpoints", "export", f"{source.key}@9", "-o", tmp_path / "out")
    assert (exported.returncode, exported.stderr) == (1, f"error: {said}")
    forked = rollyard("launch", "reverse-text-rl", "--fork-from", f"{source.key}@9")
    assert (forked.returncode, forked.stderr) == (1, f"error: --fork-from: {said}")
    assert rollyard("launch", "reverse-text-rl", "--fork-from", f"{source.key}@x").returncode == 1
    assert rollyard("launch", "reverse-text-rl", "--fork-optimizer").returncode == 1
    assert rollyard("checkpoints", "export", source.key, "-o", tmp_path).returncode == 2
    assert "'x@last' is neither RUN nor RUN@STEP" in rollyard("checkpoints", "verify", "x@last").stderr
    assert Run.objects.count() == 1


def test_an_export_lies_where_the_command_was_given_and_runs_can_read_it(
    rollyard: Rollyard, source: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(checkpoint: Checkpoint, directory: Path, *, dtype: str) -> None:
        assert directory.is_absolute()  # a sandbox takes no other
        (directory / "weights").touch(mode=0o600)

    monkeypatch.setattr(forking, "export", fill)
    monkeypatch.chdir(tmp_path)
    exported = rollyard("checkpoints", "export", source.key, "-o", "made/with it/out")
    output = tmp_path / "made" / "with it" / "out"
    assert exported.stdout == f"{output}: step 2 of run {source.key}\n", exported.stderr
    assert accounts.find_closed(accounts.account_of_runs(), tmp_path / "made") is None
    assert (output / "weights").exists()
