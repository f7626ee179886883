"""What an Atropos environment asks of the trainer of a scored group, beside its tokens, masks and scores.

Where such a group meets a trainer of ours, at a run's Atropos address or in the bridge, it is told by these rules.
"""

from collections.abc import Iterable, Mapping
from typing import Any

ZEROED = "set_advantage_to_zero"
"""The override of a rollout that trains with an advantage of 0, and whose score still counts for the others."""


def asked(overrides: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys that the override of any rollout sets to something, sorted."""
    return sorted({key for each in overrides for key, value in each.items() if value})


def asked_of_group(overrides: Mapping[str, Any]) -> list[str]:
    """The same of a group's overrides, but for its size, which anybody can count."""
    return [key for key in asked([overrides]) if key != "group_size"]


def is_given(value: Any) -> bool:
    """Whether there is anything in it: empty lists, and lists of nothing, are how Atropos says none."""
    if isinstance(value, list | tuple):
        return any(map(is_given, value))
    return bool(value) if isinstance(value, str | dict) else value is not None
