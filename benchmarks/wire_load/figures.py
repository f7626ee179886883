"""From measurements to the figures that are printed: percentiles, medians with their range, ratios pair by pair."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Figures = dict[str, float]
"""What one measurement found; names carry their unit."""


@dataclass(frozen=True)
class Spread:
    """Several measurements of one thing."""

    median: float
    min: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    """Median and range of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of them do not exceed (nearest rank), 0 < share <= 1."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def latencies(seconds: Sequence[float], prefix: str = "") -> Figures:
    """Percentiles in milliseconds."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {f"{prefix}{name}_ms": 1000 * percentile(seconds, share) for name, share in shares.items()}


def summarise(rounds: Sequence[Figures]) -> dict[str, Spread]:
    """Each figure over all rounds that have it."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    return {name: spread([figures[name] for figures in rounds if name in figures]) for name in names}


def ratios(ours: Sequence[Figures], others: Sequence[Figures]) -> dict[str, Spread]:
    """Ours divided by the other's, pair by pair; figures that are 0 or that only one side has are left out."""
    pairs = [
        {name: mine[name] / theirs[name] for name in mine if theirs.get(name)}
        for mine, theirs in zip(ours, others, strict=True)
    ]
    return summarise(pairs)


def report(sides: dict[str, list[Figures]]) -> dict[str, Any]:
    """Everything as plain data: each side's rounds and spreads, and the ratios when there are two sides."""
    found: dict[str, Any] = {
        name: {"spread": _plain(summarise(rounds)), "rounds": [_rounded(each) for each in rounds]}
        for name, rounds in sides.items()
    }
    if len(sides) == 2:
        found["ratio"] = _plain(ratios(*sides.values()))
    return found


def table(found: dict[str, Any]) -> list[str]:
    """The spreads of a report as lines of aligned columns."""
    columns = {name: part.get("spread", part) for name, part in found.items()}
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [["median (min to max)", *columns]]
    rows += [[name, *(_cell(column.get(name)) for column in columns.values())] for name in names]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cell(values: dict[str, float] | None) -> str:
    if values is None:
        return "-"
    median, low, high = (_short(values[name]) for name in ("median", "min", "max"))
    return median if low == high else f"{median} ({low} to {high})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _plain(spreads: dict[str, Spread]) -> dict[str, Figures]:
    return {name: _rounded(asdict(each)) for name, each in spreads.items()}


def _rounded(figures: Figures) -> Figures:
    return {name: float(f"{value:.6g}") for name, value in figures.items()}
