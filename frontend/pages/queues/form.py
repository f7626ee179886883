"""The form that makes a queue: its values as they were typed, and what the service takes."""

from collections.abc import Mapping
from typing import Any

import msgspec

from frontend.typed import Readers, listed, numbers, written
from rollouts.errors import Invalid
from rollouts.models import QueueUnit, RejectEffect
from rollouts.services.curation.filters import FILTER_STATES, QueueFilter
from rollouts.storable import displayable

_NUMBERS: Readers = {
    "min_reward": float,
    "max_reward": float,
    "min_gap": float,
    "max_gap": float,
    "min_version": int,
    "max_version": int,
    "min_deviation": float,
    "min_tokens": int,
    "max_tokens": int,
    "share": float,
}
_WORDS = "words_per_item"
_TEXTS = ("run", "environment", "state", "error", "text")
_TICKS = ("equal_rewards", "truncated")


class QueueForm:
    """Values of a query or a form, in whatever shape they came."""

    units = QueueUnit.choices
    effects = RejectEffect.choices
    states = FILTER_STATES

    def __init__(self, given: Mapping[str, str]) -> None:
        self.errors: dict[str, str] = {}
        """Field -> what is wrong there."""
        self.values = {
            name: written(displayable(given.get(name, "")))
            for name in (
                "name",
                "project",
                "groups",
                "unit",
                "tags",
                _WORDS,
                "on_reject",
                "guideline",
                "source",
                "people",
                *_TEXTS,
                *_NUMBERS,
            )
        }
        self.ticked = {name: given.get(name, "") == "on" for name in ("is_blind", *_TICKS)}

    @property
    def project(self) -> str:
        """Its slug."""
        return self.values["project"]

    def options(self) -> dict[str, Any]:
        """What `queues.create` takes besides the project. Raises Invalid for what is no number."""
        chosen, fields = numbers(self.values, {**_NUMBERS, _WORDS: int})
        words = int(chosen.pop(_WORDS, 1))
        if not 0 < chosen.get("share", 1.0) <= 1:
            fields["share"] = "must be above 0 and at most 1"
        if self.values["state"] not in ("", *FILTER_STATES):
            fields["state"] = f"must be one of {', '.join(FILTER_STATES)}"
        if fields:
            raise Invalid("No queue was made.", fields=fields)
        texts = {name: self.values[name] for name in _TEXTS}
        return {
            "name": self.values["name"],
            "unit": self.values["unit"] or QueueUnit.GROUP,
            "source": self.values["source"],
            "people": listed(self.values["people"]),
            "tags": listed(self.values["tags"]),
            _WORDS: words,
            "is_blind": self.ticked["is_blind"],
            "on_reject": self.values["on_reject"],
            "guideline": self.values["guideline"],
            "filter": msgspec.convert(
                {"groups": listed(self.values["groups"]), **texts, **chosen}
                | {name: self.ticked[name] for name in _TICKS},
                QueueFilter,
            ),
        }
