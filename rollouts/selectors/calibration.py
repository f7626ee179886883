"""Does the reward agree with people? How often they accept, by reward, by environment and over policy versions.

Of what counts of what was said: a word *accept* or *reject* on a rollout has that rollout's reward, one on a group the
mean of its; which of two rollouts is better says nothing of the reward of either. Rewards are the environment's: what
people gave in their place agrees with people whatever it is worth. Intervals are Wilson's, of 95 %
(E. B. Wilson, J. Am. Stat. Assoc. 22, 1927).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from django.db.models import Avg, Case, OuterRef, Q, QuerySet, Subquery, When

from rollouts.models import Label, LabelVerdict, Rollout, Run
from rollouts.selectors import curation

_Z = 1.959963984540054
"""Of a two-sided interval of 95 %."""
_MOST_BINS = 6
_FEWEST_WORDS = 10
"""In a bin: fewer say nothing."""


@dataclass(frozen=True)
class Acceptance:
    """Of the words on something, how many accept it."""

    of: str
    words: int
    accepted: int
    reward: float
    """Mean, of what the words are on."""
    where: dict[str, Any] = field(default_factory=dict)
    """What is so of all that these words are on, by fields of a queue's filter."""

    @property
    def share(self) -> float:
        """Accepted of all."""
        return self.accepted / self.words

    @property
    def interval(self) -> tuple[float, float]:
        """Of the share, with 95 %."""
        return wilson(self.accepted, self.words)


@dataclass(frozen=True)
class Calibration:
    """Whether the reward of a run agrees with people."""

    words: int
    by_reward: list[Acceptance]
    """From the lowest rewards to the highest, about as many words in each."""
    by_environment: list[Acceptance]
    by_version: list[Acceptance]
    """From the oldest policy versions to the newest."""

    @property
    def is_hacked(self) -> bool:
        """Whether the reward rises and acceptance falls, from the oldest versions to the newest, beyond chance."""
        if len(self.by_version) < 2:
            return False
        first, last = self.by_version[0], self.by_version[-1]
        return last.reward > first.reward and last.interval[1] < first.interval[0]


@dataclass(frozen=True)
class WordOn:
    """A word, and what it is on."""

    is_accepted: bool
    reward: float
    environment: str
    version: int


def of_run(run: Run) -> Calibration:
    """Of all words in a run that may be read. One query."""
    columns = ("verdict", "reward", "group__environment__name", "group__max_policy_version")
    rows = _counted(curation.words(run)).values_list(*columns)
    spoken = [WordOn(verdict == LabelVerdict.ACCEPT, got, name, version or 0) for verdict, got, name, version in rows]
    return of_words(spoken)


def words_where(
    run: Run,
    *,
    min_reward: float | None = None,
    max_reward: float | None = None,
    min_version: int | None = None,
    max_version: int | None = None,
    environment: str = "",
) -> QuerySet[Label]:
    """The words of a line of the calibration (`Acceptance.where`) that may be read, newest first."""
    bounds = {
        "reward__gte": min_reward,
        "reward__lte": max_reward,
        "group__max_policy_version__gte": min_version,
        "group__max_policy_version__lte": max_version,
    }
    chosen = Q(**{column: bound for column, bound in bounds.items() if bound is not None})
    if environment:
        chosen &= Q(group__environment__name=environment)
    return _counted(curation.words(run)).filter(chosen)


def of_words(spoken: Sequence[WordOn]) -> Calibration:
    """As `of_run`, of these words."""
    by_name = sorted(spoken, key=lambda word: word.environment)
    return Calibration(
        words=len(spoken),
        by_reward=[
            _accepted(
                f"{part[0].reward:.3g} to {part[-1].reward:.3g}",
                part,
                {"min_reward": part[0].reward, "max_reward": part[-1].reward},
            )
            for part in _parts(sorted(spoken, key=lambda word: word.reward), lambda word: word.reward)
        ],
        by_environment=[
            _accepted(name, list(part), {"environment": name})
            for name, part in groupby(by_name, lambda word: word.environment)
        ],
        by_version=[
            _accepted(
                f"v{part[0].version} to v{part[-1].version}",
                part,
                {"min_version": part[0].version, "max_version": part[-1].version},
            )
            for part in _parts(sorted(spoken, key=lambda word: word.version), lambda word: word.version)
        ],
    )


def wilson(accepted: int, words: int) -> tuple[float, float]:
    """Wilson's interval of a share, with 95 %. ``words`` is not 0."""
    share, weight = accepted / words, _Z**2 / words
    middle = (share + weight / 2) / (1 + weight)
    half = _Z / (1 + weight) * math.sqrt(share * (1 - share) / words + _Z**2 / (4 * words**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def _counted(words: QuerySet[Label]) -> QuerySet[Label]:
    """Those of words that are on something with a reward, with it (`reward`)."""
    said = words.filter(verdict__in=(LabelVerdict.ACCEPT, LabelVerdict.REJECT), other__isnull=True)
    # A word on a rollout that failed is on something without a reward.
    means = Rollout.objects.filter(group=OuterRef("group")).values("group").annotate(mean=Avg("reward")).values("mean")
    reward = Case(
        When(rollout__isnull=False, then="rollout__reward"),
        When(group__given_rewards__isnull=True, then="group__reward_mean"),
        default=Subquery(means),
    )
    return said.annotate(reward=reward).filter(reward__isnull=False)


def _parts(ordered: Sequence[WordOn], value: Callable[[WordOn], float]) -> list[list[WordOn]]:
    """Parts with about as many words, at least `_FEWEST_WORDS` if there are so many; equal values are together."""
    size = max(_FEWEST_WORDS, math.ceil(len(ordered) / _MOST_BINS))
    parts: list[list[WordOn]] = []
    for _, same in groupby(ordered, value):
        if not parts or len(parts[-1]) >= size:
            parts.append([])
        parts[-1] += same
    if len(parts) > 1 and len(parts[-1]) < _FEWEST_WORDS:
        parts[-2:] = [parts[-2] + parts[-1]]
    return parts


def _accepted(of: str, words: Sequence[WordOn], where: dict[str, Any]) -> Acceptance:
    accepted, reward = sum(word.is_accepted for word in words), math.fsum(word.reward for word in words)
    return Acceptance(of, len(words), accepted, reward / len(words), where)
