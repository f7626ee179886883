"""The table of docs/environments.md names every environment that ships, and says what was measured."""

from benchmarks.environment_table import DOCUMENT, names, rows_in
from environments import registry
from environments.cards import card

ROWS = {row.name: row for row in rows_in(DOCUMENT.read_text())}


def test_every_environment_that_ships_is_in_the_table_with_what_its_card_says() -> None:
    assert list(ROWS) == names(), "run python -m benchmarks.environment_table --measure"
    assert {row.name: row.task for row in ROWS.values()} == {name: card(name).summary.rstrip(".") for name in names()}


def test_what_can_be_played_without_data_of_somebody_or_a_judge_was_measured() -> None:
    for row in filter(lambda row: registry.is_built_in(row.name), ROWS.values()):
        needs_data = any(each.name == "data" and not each.default for each in card(row.name).arguments)
        needs_others = bool(registry.policies_of(row.name, {}))
        assert bool(row.random and row.solving) != (needs_data or needs_others), row.name
