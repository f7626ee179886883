"""The ledger as a flow: a generated group is playing, held, ready, batched, trained, or was dropped with a reason."""

from dataclasses import dataclass

from rollouts.selectors.runs import LedgerLine
from rollouts.states import GROUP_FLOW, GroupState

DROPPED = (GroupState.STALE, GroupState.FILTERED, GroupState.FAILED, GroupState.REJECTED, GroupState.SURPLUS)


@dataclass(frozen=True)
class Stage:
    """One state of the flow, and how many groups are in it."""

    state: GroupState
    groups: int
    rollouts: int


@dataclass(frozen=True)
class Drop:
    """Groups that left the flow for one reason."""

    state: str
    reason: str
    groups: int
    share: float
    """Of all generated groups."""


@dataclass(frozen=True)
class Ledger:
    """Every training group of a run is in exactly one stage or one drop: `generated` is their sum."""

    generated: int
    stages: list[Stage]
    drops: list[Drop]
    dropped: int

    @property
    def parts(self) -> list[tuple[str, int]]:
        """(css class, groups) for the bar."""
        done_first = [(str(stage.state), stage.groups) for stage in reversed(self.stages)]
        return [*done_first, ("dropped", self.dropped)]


def of_lines(lines: list[LedgerLine]) -> Ledger:
    """Arrange the lines of `selectors.runs.ledger`."""
    generated = sum(line.groups for line in lines)
    stages = [
        Stage(
            state,
            sum(line.groups for line in lines if line.state == state),
            sum(line.rollouts for line in lines if line.state == state),
        )
        for state in GROUP_FLOW
    ]
    drops = [
        Drop(line.state, line.heading, line.groups, line.groups / generated)
        for line in sorted(lines, key=lambda line: -line.groups)
        if line.state in DROPPED
    ]
    return Ledger(generated, stages, drops, sum(drop.groups for drop in drops))
