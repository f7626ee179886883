"""What the kit found."""

from collections.abc import Sequence
from dataclasses import dataclass, field

_SHOWN = 3
"""Examples of what does not hold."""
_MOST_EXAMPLE = 300
"""Characters."""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    holds: bool
    sentence: str


@dataclass
class Report:
    """Everything that was checked. Rewards are means over the problems played, the best ones those of an episode."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    random_reward: float = 0.0
    random_best: float = 0.0
    solving_reward: float | None = None
    """None: the environment has no solutions."""
    hostile_best: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether everything does."""
        return all(finding.holds for finding in self.findings)

    def __str__(self) -> str:
        lines = [f"{'holds' if finding.holds else 'FAILS'}  {finding.sentence}" for finding in self.findings]
        return "\n".join([self.name, *lines])


def finding(wrong: Sequence[object], holds: str, fails: str) -> Finding:
    """The first sentence if nothing is wrong, else the other, with the first examples."""
    if not wrong:
        return Finding(True, holds)
    examples = "; ".join(str(each)[:_MOST_EXAMPLE] for each in wrong[:_SHOWN])
    return Finding(False, f"{fails} ({len(wrong)} such): {examples}")
