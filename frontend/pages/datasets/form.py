"""The form that makes a version of a dataset: its values as they were typed, and what the service takes."""

from collections.abc import Mapping
from typing import Any

import msgspec

from frontend.typed import Readers, listed, numbers
from rollouts.errors import Invalid
from rollouts.models import DatasetForm
from rollouts.services.datasets.choosing import CHOOSABLE, Recipe
from rollouts.storable import displayable

_NUMBERS: Readers = {
    "best": int,
    "min_reward": float,
    "max_reward": float,
    "min_gap": float,
    "unwanted_below": float,
    "validation_share": float,
    "limit": int,
}
_LISTS = ("runs", "groups", "states", "tags")
_TEXTS = ("queue", "version", "environment")
_TICKS = ("truncated", "accepted", "rejected", "has_correction")
_SAID = ("name", "project", "form", "note", "licence")


class RecipeForm:
    """Values of a query or a form, in whatever shape they came."""

    forms = DatasetForm.choices
    states = CHOOSABLE

    def __init__(self, given: Mapping[str, str]) -> None:
        self.errors: dict[str, str] = {}
        """Field -> what is wrong there."""
        names = (*_SAID, *_TEXTS, *_LISTS, *_NUMBERS)
        self.values = {name: displayable(given.get(name, "")).strip() for name in names}
        self.ticked = {name: given.get(name, "") == "on" for name in _TICKS}

    @property
    def project(self) -> str:
        """Its slug."""
        return self.values["project"]

    def options(self) -> dict[str, Any]:
        """What `making.make` takes besides the project. Raises Invalid for what is no recipe."""
        found, fields = numbers(self.values, _NUMBERS)
        chosen: dict[str, Any] = {name: self.values[name] for name in _TEXTS} | self.ticked | found
        chosen |= {name: listed(self.values[name]) for name in _LISTS}
        for name, value in chosen.items():
            try:
                msgspec.convert({name: value}, Recipe)
            except msgspec.ValidationError as error:
                fields[name] = f"must fit: {error}"
        if fields:
            raise Invalid("Nothing was made.", fields=fields)
        recipe = msgspec.convert(chosen, Recipe)
        said = {name: self.values[name] for name in ("name", "note", "licence")}
        return said | {"form": self.values["form"] or DatasetForm.EXAMPLES.value, "recipe": recipe}
