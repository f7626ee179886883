"""Evaluations as their pages show them: figures with their intervals, and curves over policy versions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frontend import numbers
from rollouts.models import Evaluation

_WIDTH, _HEIGHT, _MARGIN = 320, 96, 6
_FIGURE = re.compile(r"(avg|pass)[@^]\d+")


@dataclass(frozen=True)
class ShownFigure:
    """One figure and its interval."""

    name: str
    value: str
    interval: str
    problems: int


@dataclass(frozen=True)
class EvaluationRow:
    """One evaluation in a table."""

    evaluation: Evaluation
    versions: str
    """What it measured, in words."""
    average: ShownFigure | None
    others: list[ShownFigure]
    """pass@k and pass^k."""
    rollouts: int
    tokens: int | None
    """None until there are figures."""
    truncated: float | None
    """Share of its rollouts."""
    out_of_turns: float | None
    failed: float | None
    errors: list[tuple[str, int]]


@dataclass(frozen=True)
class EvaluationCurve:
    """Mean rewards of one environment over policy versions: points and their intervals, in pixels."""

    environment: str
    points: list[tuple[str, str, str, str, str]]
    """(x, y, y of the upper end, y of the lower end, what it says)."""
    line: str
    low: str
    high: str
    first: int
    last: int


def line(evaluation: Evaluation) -> EvaluationRow:
    """What there is of it; of one that is still played only how far it is."""
    found: dict[str, Any] = evaluation.figures or {}
    figures = [_figure(name, told) for name, told in found.items() if _FIGURE.fullmatch(name)]
    averages = [each for each in figures if each.name.startswith("avg")]
    rollouts = found.get("rollouts", 0)
    return EvaluationRow(
        evaluation=evaluation,
        versions=_versions(evaluation),
        average=averages[0] if averages else None,
        others=[each for each in figures if each not in averages],
        rollouts=rollouts,
        tokens=found.get("tokens"),
        truncated=found["truncated"] / rollouts if rollouts else None,
        out_of_turns=found["out_of_turns"] / rollouts if "out_of_turns" in found and rollouts else None,
        failed=found["failed"] / rollouts if rollouts else None,
        errors=sorted(found.get("errors", {}).items(), key=lambda item: -item[1]),
    )


def curves(found: Sequence[Evaluation]) -> list[EvaluationCurve]:
    """One for each environment that was measured on two versions or more."""
    by_environment: dict[str, list[tuple[Evaluation, dict[str, float]]]] = {}
    for each in found:
        average = next((told for name, told in (each.figures or {}).items() if name.startswith("avg@")), None)
        if average is not None:
            by_environment.setdefault(each.environment.name, []).append((each, average))
    return [_curve(name, rows) for name, rows in by_environment.items() if len(rows) > 1]


def _curve(name: str, rows: list[tuple[Evaluation, dict[str, float]]]) -> EvaluationCurve:
    low, high = min(told["low"] for _, told in rows), max(told["high"] for _, told in rows)
    first, last = rows[0][0].version, rows[-1][0].version
    span, length = (high - low) or 1.0, (last - first) or 1

    def y(value: float) -> str:
        return f"{_MARGIN + (high - value) / span * (_HEIGHT - 2 * _MARGIN):.1f}"

    points = []
    for evaluation, told in rows:
        x = f"{_MARGIN + (evaluation.version - first) / length * (_WIDTH - 2 * _MARGIN):.1f}"
        said = f"v{evaluation.version}: {numbers.number(told['value'])} {_interval(told)}"
        points.append((x, y(told["value"]), y(told["high"]), y(told["low"]), said))
    return EvaluationCurve(
        environment=name,
        points=points,
        line=" ".join(f"{x},{at}" for x, at, *_ in points),
        low=numbers.number(low),
        high=numbers.number(high),
        first=first,
        last=last,
    )


def _figure(name: str, told: dict[str, Any]) -> ShownFigure:
    return ShownFigure(name, numbers.number(told["value"]), _interval(told), told["problems"])


def _interval(told: dict[str, Any]) -> str:
    return f"[{numbers.number(told['low'])}, {numbers.number(told['high'])}]"


def _versions(evaluation: Evaluation) -> str:
    first, last = evaluation.min_policy_version, evaluation.max_policy_version
    if first is None or first == last:
        return f"v{evaluation.version if first is None else first}"
    return f"v{first} to v{last}"
