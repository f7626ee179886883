"""Versions as files: whole or absent, the same bytes however often they were interrupted, loadable by everybody."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest

from environments.types import Split
from rollouts.errors import Conflict
from rollouts.formats.tables import Untabular
from rollouts.models import DatasetVersion, ExportForm, Run
from rollouts.services.datasets import files, rendering
from tests import store
from tests.rollouts import story
from tests.rollouts.datasets.test_making import make, played
from tests.rollouts.datasets.test_rendering import imported, submit
from trainers.data.examples import parse_example
from trainers.data.sources import find_files, read_lines

pytestmark = pytest.mark.django_db
SFT = ExportForm.SFT


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [played(f"g{number}", [0.5, 1.0]) for number in range(8)], actor="api:t")
    return run


class Killed(BaseException):
    """The process dies here."""


def tree(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_directory_has_a_file_of_each_split_a_card_and_a_manifest(run: Run, tmp_path: Path, suffix: str) -> None:
    version = make(run, validation_share=0.4)
    manifest = files.write_directory(version, SFT, tmp_path / "out", suffix=suffix)
    assert set(tree(tmp_path / "out")) == {f"train{suffix}", f"validation{suffix}", "README.md", "manifest.json"}
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == manifest
    assert sum(manifest["rows"].values()) == manifest["examples"] == 16
    assert manifest["recipe"]["runs"] == [run.key]
    assert manifest["digest"] == version.digest
    assert sum(source["rows"] for source in manifest["sources"]) == 16
    for split in ("train", "validation"):
        [found] = find_files(str(tmp_path / "out"), split)
        read = found.read_bytes().splitlines() if suffix == ".jsonl" else list(read_lines(found))
        assert len([parse_example(line, "f", ["assistant"]) for line in read]) == manifest["rows"][split]


def test_a_card_names_the_columns_where_every_row_has_them(run: Run, tmp_path: Path) -> None:
    def card(version: DatasetVersion, suffix: str) -> str:
        place = tmp_path / f"{version.pk}{suffix}"
        files.write_directory(version, SFT, place, suffix=suffix)
        return (place / "README.md").read_text()

    of_file = imported(run, [{"prompt": "p", "completion": "c", "category": "x"}])
    assert "dataset_info:" in card(make(run), ".jsonl")
    assert "dataset_info:" not in card(of_file, ".jsonl")
    told = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert "dataset_info:" in card(imported(run, [{"messages": told, "category": "x"}]), ".parquet")


def test_a_table_has_the_rows_of_the_lines(run: Run, tmp_path: Path) -> None:
    submit(run, story.rollout(1.0, tokens=5))
    version = make(run)
    files.write_file(version, SFT, tmp_path / "a.jsonl")
    files.write_file(version, SFT, tmp_path / "a.parquet")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()]
    table = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert [_without_nulls(row) for row in table] == [_without_nulls(row) for row in lines]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def test_a_file_has_one_split_and_its_manifest_beside_it(run: Run, tmp_path: Path) -> None:
    version = make(run, validation_share=0.4)
    manifest = files.write_file(version, SFT, tmp_path / "a.jsonl.gz", split=Split.EVAL)
    assert set(tree(tmp_path)) == {"a.jsonl.gz", "a.jsonl.gz.manifest.json"}
    lines = gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).splitlines()
    assert len(lines) == manifest["rows"]["validation"] > 0
    assert manifest["files"]["a.jsonl.gz"]["rows"] == len(lines)


@pytest.mark.parametrize("split", list(Split))
def test_the_manifest_of_a_file_counts_what_is_of_its_split_alone(tmp_path: Path, split: Split) -> None:
    many = [story.launch() for _ in range(8)]
    for number, run in enumerate(many):  # each of one problem, so wholly in one split
        story.submit(run, [played(f"g{number}", [0.0, 1.0])], actor="api:t")
    version = make(many[0], runs=[run.key for run in many], validation_share=0.5, unwanted_below=0.5)
    manifest = files.write_file(version, SFT, tmp_path / "a.jsonl", split=split)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()]
    assert 0 < len(rows) < 8
    assert {each["run"]: each["rows"] for each in manifest["sources"]} == {row["run"]: 1 for row in rows}
    assert manifest["left_out"] == {"unwanted": len(rows)}
    files.write_directory(version, SFT, tmp_path / "whole", suffix=".jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == tree(tmp_path / "whole")[f"{files.NAMES[split]}.jsonl"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_what_dies_at_any_moment_goes_on_to_the_same_bytes(run: Run, tmp_path: Path, suffix: str) -> None:
    version = make(run, validation_share=0.4)
    with patch.multiple(rendering, PAGE_MEMBERS=3), patch.multiple(files, CHUNK_BYTES=600):
        files.write_directory(version, SFT, tmp_path / "whole", suffix=suffix)
        for moment in range(1, 40):
            countdown = iter(range(moment))

            def die(_: object, left: Any = countdown) -> None:
                if next(left, None) is None:
                    raise Killed

            target = tmp_path / f"at-{moment}"
            with patch.object(files, "crash_point", die):
                try:
                    files.write_directory(version, SFT, target, suffix=suffix)
                except Killed:
                    pass
                else:
                    break
            for path in target.glob(".*.rows"):  # what was written and not yet journalled may be torn
                if not (target / "manifest.json").exists():
                    with path.open("ab") as file:
                        file.write(b'{"torn')
            told: list[files.ExportProgress] = []
            files.write_directory(version, SFT, target, suffix=suffix, told=told.append)
            assert tree(target) == tree(tmp_path / "whole")
            assert moment < 4 or not told or told[0].members > 0, "it began anew"
        else:
            pytest.fail("it never came to its end")


def test_what_another_release_began_is_begun_anew(run: Run, tmp_path: Path) -> None:
    version = make(run, validation_share=0.4)

    def die(told: files.ExportProgress) -> None:
        if told.members:
            raise Killed

    with patch.multiple(rendering, PAGE_MEMBERS=3), patch.multiple(files, CHUNK_BYTES=600):
        with pytest.raises(Killed):
            files.write_directory(version, SFT, tmp_path / "a", suffix=".jsonl", told=die)
        positions: list[int] = []
        with patch.object(files, "RELEASE", "99.0"):
            files.write_directory(
                version, SFT, tmp_path / "a", suffix=".jsonl", told=lambda each: positions.append(each.members)
            )
    assert positions[0] == 0, "it went on with rows of the other"


def test_only_one_process_writes_a_file(run: Run, tmp_path: Path) -> None:
    version = make(run)

    def second(_: files.ExportProgress) -> None:
        with pytest.raises(Conflict, match="another process"):
            files.write_file(version, SFT, tmp_path / "a.jsonl")

    files.write_file(version, SFT, tmp_path / "a.jsonl", told=second)


def test_another_version_begins_anew_over_what_was_left(run: Run, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(progress: files.ExportProgress) -> None:
        if progress.members:
            raise Stop

    with patch.multiple(rendering, PAGE_MEMBERS=3), patch.multiple(files, CHUNK_BYTES=600):
        with pytest.raises(Stop):
            files.write_file(make(run), SFT, tmp_path / "a.jsonl", told=stop)
        files.write_file(make(run, best=1), SFT, tmp_path / "a.jsonl")
    assert len((tmp_path / "a.jsonl").read_bytes().splitlines()) == 8
    assert set(tree(tmp_path)) == {"a.jsonl", "a.jsonl.manifest.json"}


def test_a_table_says_which_row_it_cannot_hold(run: Run, tmp_path: Path) -> None:
    submit(run, story.rollout(1.0, tokens=5), story.rollout(0.0, tokens=3))
    version = make(run, form="pairs")
    with pytest.raises(Untabular, match="group x has tokens and no messages: write it as JSONL"):
        files.write_file(version, ExportForm.DPO, tmp_path / "a.parquet")
    assert not (tmp_path / "a.parquet").exists()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_killed_by_the_machine_at_random_moments_it_ends_in_the_same_bytes(run: Run, tmp_path: Path) -> None:
    version: DatasetVersion = make(run)
    code = (
        "import sys, django; django.setup()\n"
        "from pathlib import Path\n"
        "from rollouts.models import DatasetVersion, ExportForm\n"
        "from rollouts.services.datasets import files, rendering\n"
        "rendering.PAGE_MEMBERS, files.CHUNK_BYTES = 2, 200\n"
        f"version = DatasetVersion.objects.get(pk={version.pk})\n"
        "files.write_file(version, ExportForm.SFT, Path(sys.argv[1]))\n"
    )
    files.write_file(version, SFT, tmp_path / "whole.jsonl")
    out, dice, deaths = tmp_path / "out.jsonl", random.Random(7), 0
    for _ in range(20):
        environ = os.environ | {"DJANGO_SETTINGS_MODULE": "controlplane.settings", "DATABASE_URL": store.url()}
        if deaths < 5:
            environ["ROLLYARD_CRASH_POINT"] = f"mid_export:{dice.randint(1, 4)}"
        done = subprocess.run([sys.executable, "-c", code, str(out)], env=environ, check=False, capture_output=True)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        deaths += 1
    assert deaths == 5
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
