"""What `data` may name, and which files hold which config and split."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from environments.library.data import files as data_files
from environments.library.data.files import EVERY, DataFiles


def laid_out(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"a": 1}\n')
    return root


def names(root: Path, paths: list[Path]) -> list[str]:
    return [path.relative_to(root).as_posix() for path in paths]


@pytest.mark.parametrize(
    ("layout", "train", "test"),
    [
        (["train.jsonl", "test.jsonl"], ["train.jsonl"], ["test.jsonl"]),
        (
            [
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002.parquet",
                "data/test-00000-of-00001.parquet",
            ],
            ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"],
            ["data/test-00000-of-00001.parquet"],
        ),
        (["train/0000.parquet", "test/0000.parquet"], ["train/0000.parquet"], ["test/0000.parquet"]),
        (["my-training_set.json", "my.eval.json"], ["my-training_set.json"], ["my.eval.json"]),
        (["train.jsonl.gz", "testing.jsonl.gz"], ["train.jsonl.gz"], ["testing.jsonl.gz"]),
        (["train/algebra/1.json", "test/algebra/1.json"], ["train/algebra/1.json"], ["test/algebra/1.json"]),
        (["train/data-00000-of-00001.arrow", "train/state.json"], ["train/data-00000-of-00001.arrow"], []),
        (["latest.jsonl"], [], []),
        (["README.md", "train.jsonl", ".cache/train.jsonl", "dataset_infos.json"], ["train.jsonl"], []),
    ],
)
def test_splits_are_read_from_names(tmp_path: Path, layout: list[str], train: list[str], test: list[str]) -> None:
    files = DataFiles(str(laid_out(tmp_path, *layout)))
    assert names(tmp_path, files.of("train")) == train
    assert names(tmp_path, files.of("test")) == test


def test_a_split_of_just_that_name_comes_before_its_kin(tmp_path: Path) -> None:
    root = laid_out(
        tmp_path, *(f"all/{split}-00000-of-00001.parquet" for split in ("auxiliary_train", "dev", "validation"))
    )
    files = DataFiles(str(root))
    assert files.splits == ["auxiliary_train", "dev", "validation"]
    assert names(root, files.of("dev")) == ["all/dev-00000-of-00001.parquet"]
    assert names(root, files.of("validation")) == ["all/validation-00000-of-00001.parquet"]
    assert names(root, files.of("train")) == ["all/auxiliary_train-00000-of-00001.parquet"]


def test_a_directory_is_a_config(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "main/train-00000-of-00001.parquet", "socratic/train-00000-of-00001.parquet")
    assert names(root, DataFiles(str(root)).paths) == ["main/train-00000-of-00001.parquet"]
    assert names(root, DataFiles(str(root), "socratic").paths) == ["socratic/train-00000-of-00001.parquet"]
    assert len(DataFiles(str(root), EVERY).of("train")) == 2
    with pytest.raises(ValueError, match=r"^config: .* has no config 'hard'; it has main, socratic$"):
        DataFiles(str(root), "hard")


def test_one_of_several_configs_has_to_be_named(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "ARC-Easy/test.jsonl", "ARC-Challenge/test.jsonl")
    with pytest.raises(
        ValueError, match=r"^config: .* set it to one of ARC-Challenge, ARC-Easy, or to \* for all of them$"
    ):
        DataFiles(str(root))


def test_a_file_is_all_of_it(tmp_path: Path) -> None:
    path = laid_out(tmp_path, "test.jsonl") / "test.jsonl"
    files = DataFiles(str(path))
    assert (files.paths, files.splits) == ([path], [])
    with pytest.raises(ValueError, match=r"^config: .* is a file and has none: leave it out$"):
        DataFiles(str(path), "main")
    with pytest.raises(
        ValueError, match=r"has no split 'test'; it has none that its files are named after, so leave it out$"
    ):
        files.named("test", "eval_split")


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached(cache: Path, name: str, revision: str, *files: str) -> Path:
    """A snapshot, of links to blobs as the hub's client makes it."""
    folder = cache / f"datasets--{name.replace('/', '--')}"
    for file in files:
        blob = folder / "blobs" / f"{revision}-{file.replace('/', '-')}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text('{"a": 1}\n')
        link = folder / "snapshots" / revision / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (folder / "refs").mkdir(exist_ok=True)
    return folder


def test_a_name_of_the_hub_is_its_snapshot_in_the_cache(hub_cache: Path) -> None:
    folder = cached(hub_cache, "owner/set", "aaa", "main/train.jsonl", "main/test.jsonl")
    cached(hub_cache, "owner/set", "bbb", "main/train.jsonl")
    (folder / "refs" / "main").write_text("aaa")
    files = DataFiles("owner/set")
    assert names(folder / "snapshots" / "aaa", files.paths) == ["main/test.jsonl", "main/train.jsonl"]


def test_without_a_main_revision_there_is_still_a_snapshot(hub_cache: Path) -> None:
    folder = cached(hub_cache, "owner/set", "aaa", "train.jsonl")
    assert DataFiles("owner/set").paths == [folder / "snapshots" / "aaa" / "train.jsonl"]


def test_a_name_that_is_not_in_the_cache_is_refused_at_once_in_one_sentence(hub_cache: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match="owner/none is not in the hub's cache") as refused:
        DataFiles("owner/none")
    assert time.monotonic() - began < 3
    told = str(refused.value)
    assert "hf download --repo-type dataset owner/none" in told
    assert "put its files into a directory" in told
    assert "\n" not in told


def test_looking_for_a_name_imports_none_of_the_hub_s_libraries() -> None:
    code = (
        "import sys\nfrom environments import registry\nfrom environments.errors import InvalidArguments\n"
        "try:\n    registry.load('gsm8k', {'data': 'owner/none'})\nexcept InvalidArguments as no:\n    print(no)\n"
        "print(sorted({'datasets', 'huggingface_hub', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    told, imported = done.stdout.splitlines()
    assert "owner/none is not in the hub's cache" in told
    assert imported == "[]"


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("nothing/here/at/all", "there is no .*: put the files there, or name"),
        ("nothing.jsonl", "there is no nothing.jsonl"),
        ("a\nb", "there is no"),
        ("empty", "has no data files in it"),
        ("notes.txt", "none of the files that can be read"),
    ],
)
def test_what_is_not_there_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=f"^data: .*{told}"):
        DataFiles(named)


def test_a_directory_of_very_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out(tmp_path, *(f"{number}.txt" for number in range(20)))
    monkeypatch.setattr(data_files, "_MOST_FILES", 10)
    with pytest.raises(ValueError, match="holds more than 10 files: name a directory below it"):
        DataFiles(str(tmp_path))


def test_a_link_to_nothing_is_no_reason_to_leave_a_shard_out(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "train-00000-of-00002.jsonl")
    lost = root / "train-00001-of-00002.jsonl"
    lost.symlink_to(root / "blobs" / "none")
    assert DataFiles(str(root)).of("train")[1:] == [lost]


def test_a_split_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    files = DataFiles(str(laid_out(tmp_path, "train.jsonl", "dev.jsonl")))
    assert files.named("validation", "eval_split") == [tmp_path / "dev.jsonl"]
    with pytest.raises(ValueError, match=r"^eval_split: .* has no split 'hidden'; it has dev, train$"):
        files.named("hidden", "eval_split")


def test_a_split_of_just_that_name_is_not_mixed_with_one_that_has_a_number(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "test.jsonl", "test_500.jsonl", "train_1.jsonl", "train_2.jsonl")
    files = DataFiles(str(root))
    assert files.of("test") == [root / "test.jsonl"]
    assert files.of("test_500") == [root / "test_500.jsonl"]
    assert files.of("train") == [root / "train_1.jsonl", root / "train_2.jsonl"]


def test_directories_named_after_a_split_with_files_that_are_numbered_are_no_configs(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "train_data/train_1.jsonl", "test_data/test_1.jsonl")
    files = DataFiles(str(root))
    assert files.of("train") == [root / "train_data" / "train_1.jsonl"]
    assert files.of("test") == [root / "test_data" / "test_1.jsonl"]


def test_a_readme_that_begins_with_a_rule_declares_nothing(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "train.jsonl")
    (root / "README.md").write_text("---\nCleaned by Bob: v2: final\n---\n")
    assert DataFiles(str(root)).of("train") == [root / "train.jsonl"]
