"""Where the time of each episode of a group went: a lane per thing that it waited for, all to one scale."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from environments.types import SpanKind

COLUMNS = 500
"""A lane is drawn no finer than this: stretches that lie closer together than a column become one."""
MOST_LISTED = 200
"""Stretches that are listed with their seconds."""
_LABELS = {
    SpanKind.MODEL: "policy",
    SpanKind.TOOLS: "tools",
    SpanKind.SCORING: "scoring",
}
_MEANINGS = {
    SpanKind.MODEL: "Waiting for a reply of the policy",
    SpanKind.TOOLS: "The environment: its tools, its answers to replies",
    SpanKind.SCORING: "Scoring the whole group",
}


@dataclass(frozen=True)
class Stretch:
    """A wait, in seconds since the episode began."""

    label: str
    began_s: float
    seconds: float


@dataclass(frozen=True)
class Lane:
    """Everything that an episode waited for one thing; stretches that overlap count once."""

    kind: SpanKind
    seconds: float
    share: float
    """Of the episode."""
    waits: int
    bars: list[tuple[str, str]]
    """(x, width) in percent of the longest episode of the group."""

    @property
    def label(self) -> str:
        return _LABELS[self.kind]

    @property
    def meaning(self) -> str:
        return _MEANINGS[self.kind]


@dataclass(frozen=True)
class Timeline:
    """One episode."""

    seconds: float
    lanes: list[Lane]
    """Of what it waited for at all, in the order of `SpanKind`."""
    stretches: list[Stretch]
    """The first of them, as they began."""
    left_out: int
    """How many more there are."""


_Span = tuple[SpanKind, float, float]


def of_group(stored: Iterable[Sequence[Any] | None]) -> list[Timeline | None]:
    """The timelines of a group's rollouts, from their stored spans; None where nobody measured."""
    measured = [_known(spans or []) for spans in stored]
    scale_s = max((_end(spans) for spans in measured), default=0.0)
    return [_timeline(spans, scale_s) if spans else None for spans in measured]


def _known(stored: Sequence[Any]) -> list[_Span]:
    spans = [(SpanKind(kind), max(0.0, float(began)), float(seconds)) for kind, began, seconds in stored]
    return sorted(spans, key=lambda span: span[1])


def _end(spans: Iterable[_Span]) -> float:
    return max((began + seconds for _, began, seconds in spans), default=0.0)


def _timeline(spans: list[_Span], scale_s: float) -> Timeline:
    total_s = _end(spans)
    lanes = [_lane(kind, [span for span in spans if span[0] == kind], total_s, scale_s) for kind in SpanKind]
    return Timeline(
        seconds=total_s,
        lanes=[lane for lane in lanes if lane.waits],
        stretches=[Stretch(_LABELS[kind], began, seconds) for kind, began, seconds in spans[:MOST_LISTED]],
        left_out=max(0, len(spans) - MOST_LISTED),
    )


def _lane(kind: SpanKind, spans: list[_Span], total_s: float, scale_s: float) -> Lane:
    seconds = sum(end - began for began, end in _joined(spans, 0.0))
    column_s = scale_s / COLUMNS
    drawn = [(began, max(end, began + column_s)) for began, end in _joined(spans, column_s)]
    return Lane(
        kind=kind,
        seconds=seconds,
        share=seconds / total_s if total_s else 0.0,
        waits=len(spans),
        bars=[(_percent(began, scale_s), _percent(end - began, scale_s)) for began, end in drawn],
    )


def _joined(spans: Iterable[_Span], gap_s: float) -> list[tuple[float, float]]:
    """(begin, end) of stretches, those with at most `gap_s` between them as one."""
    joined: list[tuple[float, float]] = []
    for _, began, seconds in spans:
        end = began + seconds
        if joined and began - joined[-1][1] <= gap_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((began, end))
    return joined


def _percent(seconds: float, scale_s: float) -> str:
    return f"{100 * seconds / scale_s if scale_s else 0.0:.2f}%"
