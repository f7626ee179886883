"""A run learns from a version of a dataset: found at launch, written before its trainer, known in both directions."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import Invalid
from rollouts.models import Run, RunDataset
from rollouts.selectors import exports as export_selectors
from rollouts.services.datasets import learning
from rollouts.services.runs import launches
from tests.factories import make_project, somebody
from tests.model_files import make_warm
from tests.rollouts import story
from tests.rollouts.datasets.test_making import make, played
from trainers.config import resolve
from trainers.data.dataset import open_dataset

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [played(f"g{number}", [0.5, 1.0]) for number in range(8)], actor="api:t")
    make_warm(run.project)
    return run


def launch(path: str, **values: Any) -> Run:
    overrides = {
        "data.path": path,
        "model.path": "reverse-text-warm",
        "max_steps": 3,
        "optimizer.warmup_steps": 0,
        "evaluation": None,
    }
    resolved = resolve(
        "reverse-text-sft", overrides=overrides | {key.replace("__", "."): value for key, value in values.items()}
    )
    return launches.launch(
        project=make_project(), user=somebody(), resolved=resolved, actor="user:ada", forkable=Run.objects.all()
    )


def test_a_run_trains_on_the_version_that_it_names_and_both_know_it(run: Run) -> None:
    version = make(run, validation_share=0.4)
    make(run, best=1)
    learner = launch("dataset:good@1", data__validation={"path": "dataset:good", "every": 2})
    assert learner.parsed.data is not None
    assert learner.parsed.data.path == "dataset:good@1"
    assert learner.parsed.data.validation is not None
    assert learner.parsed.data.validation.path == "dataset:good@2", "the newest, by its number"
    assert [(each.split, str(each.version)) for each in learner.datasets.all()] == [
        ("train", "good@1"),
        ("eval", "good@2"),
    ]
    assert [each.run for each in export_selectors.learned_by(version)] == [learner]


def test_the_files_are_there_before_the_trainer_and_their_hash_is_kept(run: Run, tmp_path: Path) -> None:
    make(run, validation_share=0.4)
    learner = launch("dataset:good@1", data__validation={"path": "dataset:good@1", "every": 2})
    [directory, _] = learning.prepare(learner)
    for row in RunDataset.objects.filter(run=learner):
        name = "train.jsonl" if row.split == "train" else "validation.jsonl"
        assert row.sha256 == hashlib.sha256((directory / name).read_bytes()).hexdigest()
        assert row.row_count
    data = open_dataset(learner.parsed, tmp_path, learner.datasets_directory)
    assert len(data.batch(0)) == learner.parsed.data.batch_size  # type: ignore[union-attr]
    assert list(data.validation_batches())
    before = (directory / "train.jsonl").stat().st_mtime_ns
    learning.prepare(learner)
    assert (directory / "train.jsonl").stat().st_mtime_ns == before


def test_what_a_run_learns_from_is_kept_of_the_split_that_it_names(run: Run) -> None:
    make(run, validation_share=0.4)
    learner = launch("dataset:good@1", data__split="validation")
    [directory] = learning.prepare(learner)
    [row] = RunDataset.objects.filter(run=learner)
    assert row.sha256 == hashlib.sha256((directory / "validation.jsonl").read_bytes()).hexdigest()
    with pytest.raises(Invalid) as refused:
        launch("dataset:good@1", data__split="dev")
    assert refused.value.fields == {"data.split": "A version of a dataset has the splits train and validation."}


def test_pairs_are_for_preference(run: Run) -> None:
    make(run, name="pairs", form="pairs")
    learner = launch("dataset:pairs@1", data__preference={"beta": 0.1})
    [directory] = learning.prepare(learner)
    assert b'"chosen"' in (directory / "train.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("dataset:good@7", "good has no version 7: project words has good."),
        ("dataset:bad@1", "there is no dataset bad here: project words has good."),
        ("dataset:bad", "there is no dataset bad here: project words has good."),
        ("dataset:", "must name a version of a dataset, as `name@3`"),
        ("dataset:../../x@1", "there is no dataset ../../x here"),
    ],
)
def test_a_name_of_nothing_is_refused_at_launch_with_what_there_is(run: Run, path: str, told: str) -> None:
    make(run)
    with pytest.raises(Invalid) as refused:
        launch(path)
    assert told in refused.value.fields["data.path"]
    assert Run.objects.count() == 1


def test_examples_are_no_pairs(run: Run) -> None:
    make(run)
    with pytest.raises(Invalid) as refused:
        launch("dataset:good@1", data__preference={"beta": 0.1})
    assert "leave it out to learn from examples" in refused.value.fields["data.path"]


def test_a_dataset_of_another_project_is_none_here(run: Run) -> None:
    other = story.launch(project=make_project("other"))
    story.submit(other, [played("a", [0.5, 1.0])], actor="api:t")
    make(other, name="theirs")
    with pytest.raises(Invalid) as refused:
        launch("dataset:theirs@1")
    assert "there is no dataset theirs here" in refused.value.fields["data.path"]
