"""Numbers as people read them."""

import pytest

from frontend import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.73125, "0.731"),
        (12.345, "12.3"),
        (1204, "1,204"),
        (-0.5, "−0.5"),
        (0.000213, "2.1e−4"),
    ],
)
def test_a_number_has_about_three_digits(value: float | None, text: str) -> None:
    assert numbers.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "420 ms"), (8.24, "8.2 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (273_600, "3 d 4 h")],
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    assert numbers.duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(1.0, "1.00"), (0.0, "0.00"), (-0.25, "−0.25"), (None, "–")])
def test_rewards_align(value: float | None, text: str) -> None:
    assert numbers.reward(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.715, "72 %"), (0.042, "4.2 %"), (0.0, "0 %")])
def test_a_share_is_a_percentage(value: float, text: str) -> None:
    assert numbers.percent(value) == text


@pytest.mark.parametrize(("value", "text"), [(72_000, "72 kB"), (1_250_000, "1.25 MB"), (900, "900 B")])
def test_sizes_are_decimal(value: int, text: str) -> None:
    assert numbers.size(value) == text
