"""Import, export, replay and verify, as a person runs them, against the test database; and killed in the middle."""

import gzip
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from typer.testing import CliRunner

from controlplane.cli import main
from rollouts.models import Batch, Replay, Rollout, Run, ScoredGroup
from rollouts.states import GroupState, RunState
from tests import store
from tests.controlplane.command_line import Done, Rollyard
from tests.rollouts import story
from tests.rollouts.curation.test_exchange import COMPLETE, Item, given_values, item

pytestmark = [pytest.mark.slow, pytest.mark.django_db]
commits = pytest.mark.django_db(transaction=True)
"""For what a process of its own is to see."""


def write(path: Path, items: list[Item | str]) -> Path:
    text = "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in items)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def answer(done: Done, status: int = 0) -> dict[str, Any]:
    assert done.returncode == status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@commits
def test_an_import_without_a_run_makes_one_that_takes_groups_though_nothing_else_runs(
    rollyard: Rollyard, tmp_path: Path
) -> None:
    first = write(tmp_path / "a.jsonl", [COMPLETE, item(1)])
    second = write(tmp_path / "b.jsonl.gz", [item(2)])
    told = answer(rollyard.process("import-atropos", first, second, "--environment", "gsm8k", "--json"))
    run = Run.objects.get(key=told.pop("run"))
    assert told == {
        "stored": 3,
        "known": 0,
        "bad": 0,
        "rollouts": 6,
        "tokens": 21,
        "bad_lines": [],
        "is_complete": True,
    }
    assert (run.kind, run.state) == ("external", RunState.STARTING)
    assert set(run.groups.values_list("state", "environment__name")) == {(GroupState.READY, "gsm8k")}

    again = rollyard("import-atropos", second, first, "--run", run.key)
    assert again.returncode == 0
    assert again.stdout == f"{run.key}: 0 groups stored (0 rollouts, 0 tokens), 3 were there already, 0 bad lines\n"
    assert run.groups.count() == 3


@pytest.mark.parametrize("moment", ["before_insert:2", "after_insert:2", "after_commit:3"])
@commits
def test_an_import_that_was_killed_goes_on_and_stores_nothing_twice(
    rollyard: Rollyard, tmp_path: Path, moment: str
) -> None:
    sent: list[Item | str] = [item(number % 40) for number in range(100)]
    path = write(tmp_path / "a.jsonl", sent)
    run = story.launch(algorithm__loss={"type": "cross_entropy"})  # no logprob is sent
    killed = rollyard.process("import-atropos", path, "--run", run.key, ROLLYARD_CRASH_POINT=moment)
    assert killed.returncode == -signal.SIGKILL
    before = run.groups.count()
    assert before in {16, 48}
    told = answer(rollyard("import-atropos", path, "--run", run.key, "--json"))
    assert (told["known"], told["stored"]) == (before, 100 - before)
    assert (run.groups.count(), Rollout.objects.count()) == (100, 200)
    exported = rollyard("export-groups", run.key)
    assert [given_values(json.loads(line)) for line in exported.stdout.splitlines()] == sent


def test_a_bad_line_ends_the_import_unless_it_is_to_be_skipped(rollyard: Rollyard, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [item(1), "{", item(2), '{"tokens": []}'])
    refused = rollyard("import-atropos", path, "--json")
    told = answer(refused, status=1)
    assert (told["stored"], told["bad"], told["is_complete"]) == (1, 1, False)
    assert told["bad_lines"][0]["at"] == f"{path}:2"
    assert f"{path}:2: " in refused.stderr
    assert f"again with --run {told['run']}" in refused.stderr
    skipped = rollyard("import-atropos", path, "--run", told["run"], "--bad-lines", "skip")
    assert skipped.returncode == 0
    assert "1 groups stored (2 rollouts, 7 tokens), 1 were there already, 2 bad lines" in skipped.stdout
    assert f"{path}:4: masks: Field required" in skipped.stderr
    assert ScoredGroup.objects.count() == 2


def test_a_run_that_cannot_take_groups_says_why(rollyard: Rollyard, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [item()])
    for run, why in (
        (story.create(), "has not been started: start `rollyard up`"),
        (story.launch_supervised(), "takes no groups"),
    ):
        done = rollyard("import-atropos", path, "--run", run.key)
        assert done.returncode == 1
        assert why in done.stderr
        assert "Traceback" not in done.stderr
    assert rollyard("import-atropos", path, "--run", "nothing").stderr == "error: no run 'nothing'\n"
    assert rollyard("import-atropos", tmp_path / "none.jsonl").returncode == 2
    assert not ScoredGroup.objects.exists()


@commits
def test_exported_groups_are_those_that_were_imported(rollyard: Rollyard, tmp_path: Path) -> None:
    sent: list[Item | str] = [COMPLETE, *[item(number) for number in range(30)]]
    run = answer(rollyard("import-atropos", write(tmp_path / "a.jsonl", sent), "--json"))["run"]
    printed = rollyard.process("export-groups", run)
    assert [given_values(json.loads(line)) for line in printed.stdout.splitlines()] == sent
    assert printed.stderr == f"31 groups of run {run}\n"
    packed = tmp_path / "out.jsonl.gz"
    told = answer(
        rollyard("export-groups", run, "-o", packed, "--json", "--state", "ready", "--environment", "imported")
    )
    assert told == {"run": run, "groups": 31, "file": str(packed)}
    assert gzip.decompress(packed.read_bytes()).decode() == printed.stdout
    nothing = tmp_path / "none.jsonl"
    assert rollyard("export-groups", run, "-o", nothing, "--state", "trained").returncode == 0
    assert nothing.read_bytes() == b""
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "out.jsonl.gz", "none.jsonl"}
    refused = " ".join(rollyard("export-groups", run, "--state", "tired").stderr.split())
    assert "unknown: tired. Known: " in refused
    nowhere = tmp_path / "no" / "out.jsonl"
    for command in ("export-groups", "export-sft"):
        done = rollyard(command, run, "-o", nowhere)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"error: {nowhere}: No such file or directory.")
    assert rollyard("export-groups", run, "--json").returncode == 2


@commits
def test_a_file_is_named_from_where_the_command_was_given_and_through_links(
    rollyard: Rollyard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = answer(rollyard("import-atropos", write(tmp_path / "a.jsonl", [item()]), "--json"))["run"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for output in ("here.jsonl", "link/there.jsonl"):
        done = rollyard("export-groups", run, "-o", output)
        assert done.returncode == 0, done.output
    assert (tmp_path / "here.jsonl").read_text() == (tmp_path / "real" / "there.jsonl").read_text()


@commits
def test_an_export_that_fails_leaves_the_file_of_before(rollyard: Rollyard, tmp_path: Path) -> None:
    run = answer(rollyard("import-atropos", write(tmp_path / "a.jsonl", [item()]), "--json"))["run"]
    out = tmp_path / "out.jsonl"
    out.write_text("of before")
    with store.beyond_rights(), connection.cursor() as cursor:
        cursor.execute("UPDATE rollouts_grouptokens SET extras = '\\x00'")
    assert rollyard.process("export-groups", run, "-o", out).returncode == 1
    assert out.read_text() == "of before"
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "out.jsonl"}


@commits
def test_a_replay_is_ordered_from_the_command_line(rollyard: Rollyard) -> None:
    source, epoch = story.train(max_steps=3)
    for step in range(3):
        story.step(source, epoch, step)
    target = story.launch()
    told = answer(rollyard.process("replay", source.key, "1:2", "--into", target.key, "--reason", "why not", "--json"))
    assert (told["source"], told["run"], told["first_step"], told["last_step"]) == (source.key, target.key, 1, 2)
    done = rollyard("replay", source.key, "0", "--into", target.key)
    assert (done.returncode, done.stdout) == (0, f"{target.key} trains steps 0 to 0 of {source.key} next\n")
    assert list(Replay.objects.values_list("first_step", "last_step", "reason")) == [(1, 2, "why not"), (0, 0, "")]
    refused = rollyard("replay", source.key, "2:3", "--into", target.key)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: Only steps that were trained can be replayed.\n  last_step: ")
    assert Replay.objects.count() == 2


@pytest.mark.parametrize("steps", ["", "a", ":", "1:", ":1", "1:2:3", "-1", "1.5"])
def test_steps_are_a_number_or_a_range(steps: str) -> None:
    done = CliRunner().invoke(main.app, ["replay", "source", "--into", "target", "--", steps])
    assert done.exit_code == 2
    assert "such as 5:9" in done.output


@commits
def test_verification_names_the_batch_that_was_tampered_with(rollyard: Rollyard) -> None:
    run, epoch = story.train(max_steps=3)
    for step in range(3):
        story.step(run, epoch, step)
    assert rollyard.process("verify-batches", run.key).stdout == "3 batches verified, 0 differ\n"
    batch = Batch.objects.get(run=run, step=1)
    with store.beyond_rights():
        Rollout.objects.filter(group__batch_items__batch=batch).update(reward=0.125)
    done = rollyard("verify-batches", run.key)
    assert (done.returncode, done.stdout) == (1, f"3 batches verified, 1 differ: {batch.pk}\n")
    told = answer(rollyard("verify-batches", run.key, "--json"), status=1)
    assert (told["batches"], told["differing"]) == (3, 1)
    assert (told["batches_differing"][0]["batch_id"], told["batches_differing"][0]["step"]) == (batch.pk, 1)


@commits
def test_words_of_people_are_imported_once_and_bad_ones_are_told(rollyard: Rollyard, tmp_path: Path) -> None:
    run = answer(rollyard("import-atropos", write(tmp_path / "a.jsonl", [item(0)]), "--json"))["run"]
    key = Run.objects.get(key=run).groups.get().key
    words = tmp_path / "words.jsonl"
    words.write_text(json.dumps({"group": key, "verdict": "reject"}) + "\n{}\n")
    done = rollyard("import-labels", run, words)
    assert (done.returncode, done.stdout) == (1, "1 stored, 0 known, 1 bad\n")
    assert f"{words}:2: " in done.stderr
    known = {"run": run, "stored": 0, "known": 1, "bad": 1}
    assert answer(rollyard("import-labels", run, words, "--json"), status=1) == known
    assert rollyard("import-labels", run, words, "--person", "ada").returncode == 2


@commits
def test_the_best_rollouts_are_exported_as_examples_and_as_pairs(rollyard: Rollyard, tmp_path: Path) -> None:
    said = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": word}] for word in ("good", "bad")]
    groups: list[Item | str] = [item(number, messages=said) for number in range(3)]
    run = answer(rollyard("import-atropos", write(tmp_path / "a.jsonl", groups), "--json"))["run"]
    printed = rollyard.process("export-sft", run)
    assert printed.stderr == f"3 examples of run {run}\n"
    assert [json.loads(line)["messages"] for line in printed.stdout.splitlines()] == [said[0]] * 3
    assert rollyard.process("export_sft", run, "--min-reward", "2").stdout == ""
    packed = tmp_path / "pairs.jsonl.gz"
    told = answer(rollyard("export-sft", run, "--pairs", "-o", packed, "--json"))
    assert told == {"run": run, "pairs": 3, "file": str(packed)}
    pairs = [json.loads(line) for line in gzip.decompress(packed.read_bytes()).splitlines()]
    assert [(pair["chosen"], pair["rejected"]) for pair in pairs] == [(said[0], said[1])] * 3
    assert rollyard("export-sft", run, "--state", "trained", "--best", "0").stderr == f"0 examples of run {run}\n"
    assert rollyard("export-sft", run, "--state", "great").returncode == 2
