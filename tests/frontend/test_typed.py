"""What people type into forms is read, or refused by field."""

import pytest

from frontend.typed import listed, numbers


def test_fields_that_are_empty_have_no_number_and_no_fault() -> None:
    assert numbers({"share": "", "limit": "12"}, {"share": float, "limit": int}) == ({"limit": 12}, {})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("many", "must be a whole number"),
        ("1.5", "must be a whole number"),
        ("9" * 5_000, "must be a whole number"),
        ("1000000001", "must be a number of at most 1,000,000,000"),
    ],
)
def test_what_is_no_whole_number_is_refused(text: str, fault: str) -> None:
    assert numbers({"limit": text}, {"limit": int}) == ({}, {"limit": fault})


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e400", "-1e10"])
def test_what_no_reward_can_be_is_refused(text: str) -> None:
    assert numbers({"reward": text}, {"reward": float}) == ({}, {"reward": "must be a number of at most 1,000,000,000"})


def test_commas_divide_a_list_and_nothing_is_no_member() -> None:
    assert listed(" a, b ,,c ,") == ["a", "b", "c"]
