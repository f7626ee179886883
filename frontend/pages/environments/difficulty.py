"""How hard the problems of an environment are for one run's policy as it learns: a map over its versions.

a column per span of versions: groups nobody solved, four bands between, groups everybody solved
a row per problem that was played most often: its solve rate, version by version
"""

from collections.abc import Sequence
from dataclasses import dataclass

from frontend import numbers
from rollouts.models import RunEnvironment
from rollouts.selectors import difficulty
from rollouts.selectors.difficulty import DifficultyColumn, SolveRate

_HEIGHT, _WIDTH, _GAP = 96, 12, 2
_CELL = 11
_PROBLEMS = 30
_MOST_VERSIONS = 80
_LEVELS = 5
"""Shades of a solve rate in the rows of problems, besides none and all."""


@dataclass(frozen=True)
class ShownColumn:
    """Bands of one span of versions, from the ground up: (y, height, css class)."""

    x: int
    said: str
    bands: list[tuple[str, str, str]]


@dataclass(frozen=True)
class ShownProblem:
    """One problem: (x, css class, what it says) of each version that it was played on."""

    key: str
    cells: list[tuple[int, str, str]]


@dataclass(frozen=True)
class DifficultyMap:
    """Of one environment in one run."""

    row: RunEnvironment
    columns: list[ShownColumn]
    none_solved: str
    """Share of the newest span's groups that nobody solved."""
    all_solved: str
    first_version: int
    last_version: int
    problems: list[ShownProblem]
    """Played on two versions or more."""
    problems_width: int
    width: int


def of_row(row: RunEnvironment) -> DifficultyMap | None:
    """The map of an environment in a run; None before its first training group was scored. Two queries."""
    columns = difficulty.difficulty_map(row)
    if not columns:
        return None
    problems, width = _problems(difficulty.solve_rates(row, problems=_PROBLEMS))
    newest = columns[-1]
    return DifficultyMap(
        row=row,
        columns=[_column(at, column) for at, column in enumerate(columns)],
        none_solved=numbers.percent(newest.none_solved_share),
        all_solved=numbers.percent(newest.all_solved_share),
        first_version=columns[0].first_version,
        last_version=newest.last_version,
        problems=problems,
        problems_width=width,
        width=len(columns) * (_WIDTH + _GAP),
    )


def _column(at: int, column: DifficultyColumn) -> ShownColumn:
    bands, ground = [], float(_HEIGHT)
    for band, groups in enumerate(column.by_rate):
        height = groups / column.groups * _HEIGHT
        ground -= height
        if groups:
            bands.append((f"{ground:.1f}", f"{height:.1f}", f"rate-{band}"))
    versions = f"v{column.first_version}"
    if column.last_version != column.first_version:
        versions += f" to v{column.last_version}"
    none, every = numbers.percent(column.none_solved_share), numbers.percent(column.all_solved_share)
    said = (
        f"{versions}: {numbers.count(column.groups)} groups, {none} solved by nobody, {every} by all; "
        f"solve rate {numbers.percent(column.solve_rate)}"
    )
    return ShownColumn(at * (_WIDTH + _GAP), said, bands)


def _problems(rates: Sequence[SolveRate]) -> tuple[list[ShownProblem], int]:
    by_problem: dict[str, list[SolveRate]] = {}
    for rate in rates:
        by_problem.setdefault(rate.problem_key, []).append(rate)
    again = {key: each for key, each in by_problem.items() if len(each) > 1}
    versions = sorted({rate.version for each in again.values() for rate in each})[-_MOST_VERSIONS:]
    places = {version: at * (_CELL + 1) for at, version in enumerate(versions)}
    hardest_first = sorted(again.items(), key=lambda item: sum(rate.rate for rate in item[1]) / len(item[1]))
    shown = [
        ShownProblem(key, [_cell(places[rate.version], rate) for rate in each if rate.version in places])
        for key, each in hardest_first
    ]
    return shown, len(versions) * (_CELL + 1)


def _cell(x: int, rate: SolveRate) -> tuple[int, str, str]:
    level = 0 if not rate.solved else 1 + int(rate.rate * (_LEVELS - 1)) if rate.rate < 1 else _LEVELS
    return x, f"rate-{level}", f"v{rate.version}: {rate.solved} of {rate.scored} solved"
