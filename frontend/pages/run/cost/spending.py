"""What a run has cost, as its page shows it: shares, and what each means."""

from dataclasses import dataclass

from rollouts.selectors.costs import Became, Cost

_MEANINGS = {
    Became.TRAINED: "Steps, and playing the groups that were trained on.",
    Became.EVALUATED: "Playing evaluations.",
    Became.WAITING: "Playing groups that wait or are in a batch, and those that are not settled yet.",
    Became.STALE: "Playing groups that were too far behind.",
    Became.FILTERED: "Playing groups that carry no learning signal.",
    Became.FAILED: "Playing groups that failed.",
    Became.REJECTED: "Playing groups that people rejected.",
    Became.SURPLUS: "Playing groups that were left over.",
    Became.IDLE: "Servers that nobody asked for anything, trainers that waited for a batch or did a step again.",
    Became.STARTING: "Servers that did not answer yet, trainers before their first step.",
}


@dataclass(frozen=True)
class CostLine:
    """One part of it."""

    became: Became
    meaning: str
    gpu_s: int
    core_s: int
    share: float
    """Of the total, in GPUs where the run had any, else in cores."""


@dataclass(frozen=True)
class Spending:
    """Lines with something in them, in the order of `Became`."""

    lines: list[CostLine]
    gpu_s: int
    core_s: int
    unmeasured: int
    replicas: int

    @property
    def parts(self) -> list[tuple[str, int]]:
        """(css class, seconds) for the bar."""
        return [(line.became.value, line.gpu_s if self.gpu_s else line.core_s) for line in self.lines]


def of_cost(cost: Cost) -> Spending:
    """Arrange what `selectors.costs` found."""
    total = cost.total
    whole = total.gpu_s or total.core_s
    lines = [
        CostLine(
            became,
            _MEANINGS[became],
            seconds.gpu_s,
            seconds.core_s,
            (seconds.gpu_s if total.gpu_s else seconds.core_s) / whole if whole else 0.0,
        )
        for became, seconds in cost.spent.items()
        if seconds.gpu_s or seconds.core_s
    ]
    return Spending(lines, total.gpu_s, total.core_s, cost.unmeasured, cost.replicas)
