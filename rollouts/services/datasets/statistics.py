"""What is counted of a version of a dataset (`services.datasets.counting`), as it is stored."""

import msgspec

from rollouts.models import DatasetVersion


class Copies(msgspec.Struct, frozen=True):
    """Members that say the same."""

    times: int
    positions: list[int]
    """The first few."""


class Duplicates(msgspec.Struct, frozen=True, kw_only=True):
    """How many members say what another one says, or nearly."""

    exact: int
    """Members beyond the first of each text."""
    exact_first: list[Copies]
    near: int
    """Members whose answers are nearly those of one before, among those that were compared."""
    near_first: list[Copies]
    compared: int


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """How many members are of problems that evaluations of the project played."""

    problems: int
    """That evaluations played."""
    members: int
    by_key: int
    by_prompt: int
    positions: list[int]
    """The first few."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of members, their tokens and rewards."""

    train: int
    validation: int
    unwanted: int
    corrected: int
    labelled: int
    """Of which somebody had said a word when the version was made."""
    groups: int
    problems: int
    tokens: int
    """Of rollouts; rows of a file have none that are known."""
    trained_tokens: int
    most_tokens: int
    rewarded: int
    reward_mean: float | None
    reward_std: float | None
    reward_min: float | None
    reward_max: float | None


class MembersOf(msgspec.Struct, frozen=True):
    """How many members are of something."""

    name: str
    members: int


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """All that is counted of a version."""

    figures: Figures
    rewards: list[int]
    """Members in each of equal parts from the least to the highest reward; empty where all are equal."""
    environments: list[MembersOf]
    runs: list[MembersOf]
    tags: list[MembersOf]
    """The most frequent."""
    duplicates: Duplicates
    overlap: Overlap


def statistics_of(version: DatasetVersion) -> Statistics | None:
    """What was counted of a version; None: not yet."""
    return None if version.statistics is None else msgspec.convert(version.statistics, Statistics)
