"""Names of the hub from the start of a run to its end, whatever others fetch meanwhile."""

import json
from pathlib import Path

import pytest
from huggingface_hub import constants

from trainers.config import resolve
from trainers.data.dataset import open_dataset
from trainers.data.sources import find_files
from trainers.errors import DataError
from trainers.hub import pinned
from trainers.run_config import ModelConfig

FIRST, SECOND = "a" * 40, "b" * 40
"""Commits."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of what was fetched, without a way to the hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def fetch(place: Path, commit: str, lines: list[str]) -> Path:
    """What is there after somebody fetched a name anew."""
    files = place / "snapshots" / commit
    files.mkdir(parents=True)
    (files / "train.jsonl").write_text("\n".join(lines))
    (place / "refs").mkdir(exist_ok=True)
    (place / "refs" / "main").write_text(commit)
    return files


def examples(answer: str) -> list[str]:
    return [json.dumps({"prompt": str(number), "completion": answer}) for number in range(10)]


def test_a_run_goes_on_with_the_lines_that_it_began_with(cache: Path, tmp_path: Path) -> None:
    fixed = {"data.path": "org/data", "data.batch_size": 4, "max_steps": 5, "optimizer.warmup_steps": 0}
    config = resolve("reverse-text-sft", overrides=fixed | {"data.validation": {"share": 0.2}}).config

    def lines(run: str) -> list[list[tuple[bytes, str]]]:
        dataset = open_dataset(config, tmp_path / run)
        return [dataset.batch(0), *dataset.validation_batches()]

    fetch(cache / "datasets--org--data", FIRST, examples("first"))
    began = lines("run")
    fetch(cache / "datasets--org--data", SECOND, examples("second"))
    assert lines("run") == began
    assert lines("another run") != began


def test_one_of_several_configs_of_a_name_is_fetched_and_named(cache: Path) -> None:
    files = fetch(cache / "datasets--org--data", FIRST, examples("all"))
    for config in ("a", "all"):
        (files / "data" / config).mkdir(parents=True)
        (files / "data" / config / "train-0.jsonl").write_text("{}")
    (files / "train.jsonl").unlink()
    with pytest.raises(DataError) as refused:
        find_files("org/data", "train")
    assert str(refused.value).endswith(
        "has several configs with a split 'train': a, all. Fetch it by `hf download --repo-type dataset org/data "
        "--local-dir DIR`, and set data.path to one of: DIR/data/a, DIR/data/all"
    )


def test_a_run_goes_on_with_the_model_that_it_began_with(cache: Path, tmp_path: Path) -> None:
    model = ModelConfig(path="org/model")
    first = fetch(cache / "models--org--model", FIRST, [])
    assert pinned(model, tmp_path / "run").path == str(first)
    second = fetch(cache / "models--org--model", SECOND, [])
    assert pinned(model, tmp_path / "run").path == str(first)
    assert pinned(model, tmp_path / "another run").path == str(second)


def test_a_directory_is_what_it_is(cache: Path, tmp_path: Path) -> None:
    model = ModelConfig(path=str(tmp_path))
    assert pinned(model, tmp_path / "run") == model
    assert not (tmp_path / "run").exists()
