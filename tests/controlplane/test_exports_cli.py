"""Versions of datasets are written from the command line, and a version of a run first where a run is named."""

import gzip
import json
from pathlib import Path

import pytest

from rollouts.models import DatasetVersion, Run
from tests.controlplane.command_line import Rollyard
from tests.controlplane.test_data_cli import answer
from tests.factories import make_project
from tests.rollouts import story
from tests.rollouts.datasets.test_making import make, played
from workers.launchers import accounts

pytestmark = [pytest.mark.slow, pytest.mark.django_db]


@pytest.fixture
def run() -> Run:
    run = story.launch(project=make_project("default"))
    story.submit(run, [played(f"g{number}", [0.25, 1.0]) for number in range(4)], actor="api:t")
    return run


def test_a_version_is_written_to_a_file_a_directory_and_stdout(rollyard: Rollyard, run: Run, tmp_path: Path) -> None:
    make(run, validation_share=0.5)
    told = answer(rollyard("export-sft", "good@1", "-o", tmp_path / "a.jsonl.gz", "--json"))
    lines = gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).splitlines()
    assert told["rows"] == {"train": len(lines)}
    assert (tmp_path / "a.jsonl.gz.manifest.json").exists()
    held_out = rollyard("export-sft", "good@1", "--split", "validation")
    assert len(held_out.stdout.splitlines()) == 8 - len(lines)
    done = rollyard("export_sft", "good@1", "-o", tmp_path / "made" / "good", "--format", "jsonl")
    assert f"good@1: {len(lines)} train, {8 - len(lines)} validation rows" in done.stderr
    assert accounts.find_closed(accounts.account_of_runs(), tmp_path / "made") is None
    assert (tmp_path / "made" / "good" / "README.md").exists()
    assert (tmp_path / "made" / "good" / "train.jsonl").read_bytes().splitlines() == lines


def test_of_a_run_a_version_is_made_and_written(rollyard: Rollyard, run: Run, tmp_path: Path) -> None:
    done = rollyard("export-dpo", run.key, "--min-gap", "0.5", "-o", tmp_path / "pairs.parquet")
    assert done.returncode == 0, done.stderr
    assert f"rollyard export-dpo run-{run.key}@1{run.project.command_option} goes on" in done.stderr
    told = answer(rollyard("export_kto", run.key, "--unwanted-below", "0.5", "-o", tmp_path / "kto.jsonl", "--json"))
    assert told["version"] == f"run-{run.key}@2"
    assert [json.loads(line)["label"] for line in (tmp_path / "kto.jsonl").open()] == [True, False] * 4
    assert rollyard("export-sft", run.key, "--as", "best", "-o", tmp_path / "best").returncode == 0
    assert [str(version) for version in DatasetVersion.objects.order_by("id")] == [
        f"run-{run.key}@1",
        f"run-{run.key}@2",
        "best@1",
    ]


def test_what_is_not_there_or_cannot_be_is_one_sentence(rollyard: Rollyard, run: Run, tmp_path: Path) -> None:
    make(run)
    for words, told in [
        (("export-sft", "good@2"), "good has no version 2"),
        (("export-dpo", "good@1"), "export-sft or export-kto"),
        (("export-kto", "nothing"), "no run 'nothing'"),
        (("export-sft", run.key, "-o", tmp_path), "name one with --as"),
        (("export-sft", run.key, "-o", tmp_path / "good"), "name one with --as"),
        (("export-sft", run.key, "-o", tmp_path / "a.jsonl", "--split", "validation"), "name one with --as"),
        (("export-sft", "good@1", "-o", tmp_path / "no" / "a.jsonl"), "No such file"),
    ]:
        done = rollyard(*words)
        assert done.returncode == 1, done.stderr
        assert told in done.stderr
    assert rollyard("export-sft", "good@1", "--push", "me/good").returncode == 2


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("export-kto", ["--unwanted-below", "0.5"]),
        ("export-sft", ["--min-reward", "1"]),
        ("export-sft", ["--as", "better"]),
        ("export_dpo", ["--min-gap", "0.2"]),
    ],
)
def test_what_chooses_of_a_run_is_refused_of_a_version(
    rollyard: Rollyard, run: Run, tmp_path: Path, command: str, options: list[str]
) -> None:
    make(run)
    done = rollyard(command, "good@1", "-o", tmp_path / "a.jsonl", *options)
    assert done.returncode == 2, done.stderr
    assert f"'{options[0]}'" in done.stderr
    assert "rollyard datasets make" in done.stderr
    assert not list(tmp_path.iterdir())
