"""The benchmark of hostile senders at its smallest. Its ratios mean nothing here: tests run beside it."""

import math

import pytest

from benchmarks import hostile_senders
from benchmarks.hostile_load import measuring
from benchmarks.hostile_load.honest import OPERATIONS
from benchmarks.wire_load.figures import Figures
from tests.lanes import long_lane

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    long_lane("what is refused of whom is always tested"),
]
KINDS = {"bomb-stranger": {404}, "form-60mb": {413}, "passwords": {200, 429}}
"""Kind -> how it is answered."""
ALLOWED_MB = 64.0
HUNG_UP = 0


@pytest.fixture(scope="module")
def found() -> dict[str, list[Figures]]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DJANGO_SETTINGS_MODULE", "ROLLYARD_SECRET_KEY"):
            patch.delenv(name, raising=False)  # those of the tests
        patch.setattr(measuring, "ONES", 1)
        options = hostile_senders.arguments().parse_args(["--rounds=1", "--seconds=1"])
        return hostile_senders.measure(list(KINDS), options)


@pytest.mark.parametrize("kind", KINDS)
def test_others_are_served_while_eight_attack(found: dict[str, list[Figures]], kind: str) -> None:
    (figures,) = found[kind]
    assert figures["refused"] == 0
    assert all(math.isfinite(figures[f"ratio_{name}"]) for name in OPERATIONS)
    assert figures["grown_mb"] < ALLOWED_MB
    answers = {int(name.removeprefix("answered_")) for name in figures if name.startswith("answered_")}
    assert answers
    assert answers <= KINDS[kind] | {HUNG_UP}
