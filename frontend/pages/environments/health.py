"""How an environment does in the user's newest runs: by version of it, over rewards, and over the steps of one run."""

from collections.abc import Sequence
from dataclasses import dataclass

from frontend import numbers
from rollouts.models import EnvironmentSource, Run, RunEnvironment
from rollouts.selectors import distributions, environments
from rollouts.selectors.distributions import RewardDistribution
from rollouts.selectors.environments import PlayedVersion

_HEIGHT = 48
_WIDTH = 10
_GAP = 2


@dataclass(frozen=True)
class ShownCode:
    """One state of the code of a version."""

    source: EnvironmentSource
    before: EnvironmentSource | None
    """The state that was first seen before it."""
    is_unraised: bool
    """Whether its version was that of other code before."""


@dataclass(frozen=True)
class ShownDistribution:
    """Columns of a histogram, in pixels."""

    version: str
    rollouts: int
    low: str
    high: str
    columns: list[tuple[int, str, int, str, str]]
    """(x, y, width, height, what it says)."""


@dataclass(frozen=True)
class EnvironmentHealth:
    """What there is to say of what was played."""

    runs: int
    versions: list[PlayedVersion]
    distributions: list[ShownDistribution]
    codes: list[ShownCode]


def of_rows(name: str, rows: Sequence[RunEnvironment]) -> EnvironmentHealth:
    """Of an environment by its name in the registry, as runs played it. Four queries, none without rows."""
    return EnvironmentHealth(
        runs=len({row.run_id for row in rows}),
        versions=environments.of_environments(rows) if rows else [],
        distributions=[_distribution(each) for each in distributions.of_environments(rows)],
        codes=_codes(name) if rows else [],
    )


def played_rows(name: str, runs: Sequence[Run]) -> list[RunEnvironment]:
    """The rows of the environment in these runs, whatever each calls it. One query."""
    names = {(run.pk, ref.run_name) for run in runs for ref in run.parsed.environments if ref.name == name}
    rows = (
        RunEnvironment.objects.filter(run__in=[run.pk for run in runs]).select_related("run").order_by("-run_id", "id")
    )
    return [row for row in rows if (row.run_id, row.name) in names]


def _codes(name: str) -> list[ShownCode]:
    found = list(EnvironmentSource.objects.filter(name=name).defer("files").order_by("-id")[:20])
    seen = {row.version: row.pk for row in found}  # the oldest of each version, for it comes last
    return [
        ShownCode(row, found[at + 1] if at + 1 < len(found) else None, is_unraised=seen[row.version] != row.pk)
        for at, row in enumerate(found)
    ]


def _distribution(found: RewardDistribution) -> ShownDistribution:
    most = max(found.counts)
    step = (found.high - found.low) / len(found.counts)
    columns = []
    for at, count in enumerate(found.counts):
        height = count / most * (_HEIGHT - 2) + (1 if count else 0)
        begin = found.low + at * step
        said = f"{numbers.number(begin)} to {numbers.number(begin + step)}: {numbers.count(count)}"
        columns.append((at * (_WIDTH + _GAP), f"{_HEIGHT - height:.1f}", _WIDTH, f"{height:.1f}", said))
    low, high = numbers.number(found.low), numbers.number(found.high)
    return ShownDistribution(found.version, found.rollouts, low, high, columns)
