"""The page on rewards names all that there is."""

import re
from pathlib import Path

import pytest

from environments.rewards import registry

PAGE = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text()
ROWS = {cells[1].strip(" `"): cells[3] for cells in (line.split("|") for line in PAGE.splitlines()) if len(cells) > 4}


@pytest.mark.parametrize("name", registry.places())
def test_the_table_has_every_parameter_of_every_reward(name: str) -> None:
    parameters = registry.parameters_of(registry.find(name)).__struct_fields__
    assert set(parameters) <= set(re.findall(r"`(\w+)`", ROWS[name]))


def test_the_example_of_the_page_runs() -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    space: dict[str, object] = {}
    exec(code, space)
    parameters = registry.parameters_of(space["polite"])  # type: ignore[arg-type]
    assert parameters().word == "please"  # type: ignore[attr-defined]
