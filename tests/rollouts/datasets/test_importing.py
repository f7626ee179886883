"""A version of a dataset is made of a file: all of its lines, or none, and bad ones are told by number."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from rollouts.errors import Invalid
from rollouts.models import Dataset, DatasetVersion
from rollouts.services.curation.exchange import BadLine, Line
from rollouts.services.datasets import importing, making
from rollouts.services.datasets.choosing import Recipe
from tests.factories import make_project

pytestmark = pytest.mark.django_db


def lines(*rows: Any) -> Iterable[Line]:
    for number, row in enumerate(rows, start=1):
        yield Line(f"f.jsonl:{number}", row if isinstance(row, bytes) else msgspec.json.encode(row))


def told(answer: str, question: str = "?", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **more}


def read(*rows: Any, form: str = "examples", **options: Any) -> DatasetVersion:
    values: dict[str, Any] = {"name": "rows", "source": "f.jsonl", "actor": "user:cy"} | options
    return importing.import_rows(make_project(), form=form, lines=lines(*rows), **values)


def test_each_line_is_a_member_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_AT_ONCE_ROWS", 2)
    rows = [told("a", extra=1), {"prompt": "p", "completion": "c"}, {"token_ids": [1, 2], "loss_mask": [0, 1]}]
    version = read(*rows)
    assert list(version.members.order_by("position").values_list("row", flat=True)) == rows
    assert (version.member_count, version.recipe["file"]) == (3, "f.jsonl")
    assert read(*rows).digest == version.digest


def test_pairs_are_read_as_pairs() -> None:
    version = read({"prompt": "p", "chosen": "c", "rejected": "r"}, form="pairs")
    assert version.member_count == 1
    with pytest.raises(Invalid, match="needs `chosen` and `rejected`"):
        read(told("a"), form="pairs")


def test_a_line_whose_label_is_false_is_to_be_avoided() -> None:
    version = read(told("a", label=True), told("b", label=False), told("c"))
    assert list(version.members.order_by("position").values_list("is_wanted", flat=True)) == [True, False, True]


def test_bad_lines_are_told_by_number_and_nothing_is_made() -> None:
    huge = b'{"prompt": "p", "completion": "c", "x": 1e400}'
    with pytest.raises(Invalid) as refused:
        read(told("a"), b"{", {"text": "t"}, told("\0"), told("b"), huge, huge.replace(b"1e400", b"[" * 100_000))
    assert list(refused.value.fields) == [f"f.jsonl:{number}" for number in (2, 3, 4, 6, 7)]
    assert not Dataset.objects.exists()


def test_no_more_bad_lines_are_looked_at_than_are_told() -> None:
    with pytest.raises(Invalid) as refused:
        read(*[b"{"] * 50)
    assert len(refused.value.fields) == importing.SHOWN


def test_bad_lines_are_left_out_if_somebody_is_told_of_each() -> None:
    bad: list[BadLine] = []
    version = read(told("a"), b"{", told("b"), on_bad=bad.append)
    assert version.member_count == 2
    assert [line.at for line in bad] == ["f.jsonl:2"]


@pytest.mark.parametrize("options", [{"form": "songs"}, {"name": "No"}, {"validation_share": 1.0}])
def test_what_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        read(told("a"), **options)


def test_an_empty_file_makes_nothing() -> None:
    with pytest.raises(Invalid, match="no line that is an example"):
        read()


def test_rows_of_one_problem_are_in_one_split() -> None:
    rows = [told(str(answer), f"Question {number}") for number in range(40) for answer in range(3)]
    version = read(*rows, validation_share=0.3)
    splits: dict[str, set[str]] = {}
    for split, row in version.members.values_list("split", "row"):
        splits.setdefault(row["messages"][0]["content"], set()).add(split)
    assert all(len(each) == 1 for each in splits.values())
    assert 4 <= sum(each == {"eval"} for each in splits.values()) <= 20


def test_rows_with_an_empty_prompt_are_of_as_many_problems_as_they_ask() -> None:
    rows = [told("a", f"Question {number}", prompt=prompt) for number in range(20) for prompt in ("", [])]
    version = read(*rows, validation_share=0.5)
    assert set(version.members.values_list("split", flat=True)) == {"train", "eval"}


def test_a_version_is_made_of_rows_and_keeps_them() -> None:
    parent = read(*[told(str(number), str(number)) for number in range(9)], validation_share=0.3)
    recipe = Recipe(version="rows@1", limit=4)
    version = making.make(make_project(), name="rows", form="examples", recipe=recipe, actor="user:cy")
    assert version.parent == parent
    kept = version.members.order_by("position").values_list("position", "row", "split")
    assert list(kept) == list(parent.members.order_by("position").values_list("position", "row", "split")[:4])
    with pytest.raises(Invalid, match="says nothing of rows of a file"):
        making.make(
            make_project(), name="rows", form="examples", recipe=Recipe(version="rows@1", best=1), actor="user:cy"
        )
