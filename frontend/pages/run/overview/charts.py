"""Which charts a run page shows, in which order: reward first, then who waits for whom, then stability and speed.

A chart is a tag in the template; `ts/metric-chart.ts` draws it. Keys are known before the first point exists, so that
a chart can say what it waits for.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from environments.visible import visible_line
from frontend.pages.run.overview.tiles import lag_limit
from rollouts.models import Run


@dataclass(frozen=True)
class Chart:
    """One picture: the series of a few metric keys over steps."""

    title: str
    hint: str
    series: list[tuple[str, str]]
    """(metric key, label in the legend)."""
    format: str = "number"
    floor: float | None = None
    """A value that the axis always shows, so that small wiggles do not look like cliffs."""
    ceiling: float | None = None
    opens_steps: bool = True
    """A click opens the batch of the step. Not where the axis counts policy versions."""
    empty: str = "No points yet: the first one comes with the first finished step."
    attributes: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        series = [(key, visible_line(label)) for key, label in self.series]  # as text, which nothing else looks through
        attributes = {"series": json.dumps(series), "format": self.format, "empty": self.empty}
        if self.floor is not None:
            attributes["floor"] = str(self.floor)
        if self.ceiling is not None:
            attributes["ceiling"] = str(self.ceiling)
        object.__setattr__(self, "attributes", attributes)


def of_run(run: Run, environments: list[str]) -> list[Chart]:
    """The charts for this kind of run."""
    played = environments if run.config.get("evaluation") else []
    if run.kind == "eval":
        return _evaluation(played)
    return _sft(run, played) if run.kind == "sft" else _rl(run, environments, played)


def _rl(run: Run, environments: list[str], played: list[str]) -> list[Chart]:
    per_environment = [(f"reward/{name}/mean", name) for name in environments] if len(environments) > 1 else []
    limit = lag_limit(run)
    return [
        Chart(
            "Reward",
            "mean of each batch, and of all that was generated for it",
            [("reward/mean", "trained"), ("reward/generated_mean", "generated"), *per_environment],
            floor=0,
        ),
        *_evaluation(played),
        Chart(
            "Who waits for whom",
            "trainer for a batch, generation for a policy",
            [("time/wait_for_batch", "trainer"), ("time/wait_for_policy", "generation")],
            format="seconds",
            floor=0,
        ),
        Chart(
            "Lag",
            "steps behind the batch" + (f", dropped above {limit}" if limit is not None else ""),
            [("lag/mean", "mean"), ("lag/max", "max")],
            floor=0,
        ),
        Chart("Mismatch KL", "inference against trainer", [("mismatch_kl/mean", "mean")], floor=0),
        Chart("Loss", "per trained token", [("loss/mean", "mean")]),
        Chart("Entropy", "nats per token", [("entropy/mean", "mean")], floor=0),
        Chart(
            "Lost signal",
            "share of groups, and of tokens",
            [("reward/zero_advantage_share", "equal rewards"), ("clip_fraction/mean", "clipped")],
            format="percent",
            floor=0,
        ),
        Chart(
            "Problems",
            "share of all groups that were generated for a step",
            [
                ("problems/all_solved_share", "all solved"),
                ("problems/none_solved_share", "none solved"),
                ("problems/no_signal_share", "equal rewards"),
                ("problems/filtered_share", "filtered"),
            ],
            format="percent",
            floor=0,
        ),
        Chart("Throughput", "trained tokens per second", [("perf/throughput", "tokens/s")], format="si", floor=0),
    ]


def _sft(run: Run, played: list[str]) -> list[Chart]:
    data = run.config.get("data") or {}
    prefers, validates = bool(data.get("preference")), bool(data.get("validation"))

    def chart(title: str, hint: str, key: str, **more: Any) -> Chart:
        held_out = [(f"{key}/validation", "held out")] if validates else []
        return Chart(title, hint, [(f"{key}/mean", "mean"), *held_out], floor=0, opens_steps=False, **more)

    preference = [
        chart("Preference", "pairs of which the chosen answer is preferred", "preference/accuracy", format="percent"),
        chart("Margin", "reward of the chosen answer over the other's", "preference/margin"),
    ]
    return [
        chart("Loss", "per pair" if prefers else "per trained token", "loss"),
        *(preference if prefers else []),
        *_evaluation(played),
        Chart("Throughput", "trained tokens per second", [("perf/throughput", "tokens/s")], "si", 0, opens_steps=False),
        Chart("Gradient norm", "before clipping", [("optim/grad_norm", "norm")], floor=0, opens_steps=False),
        Chart("Learning rate", "", [("optim/lr", "rate")], floor=0, opens_steps=False),
        Chart("Step time", "seconds", [("time/step", "step")], "seconds", 0, opens_steps=False),
    ]


def _evaluation(environments: list[str]) -> list[Chart]:
    if not environments:
        return []
    return [
        Chart(
            "Evaluation",
            "held-out problems, over policy versions",
            [(f"eval/{name}/reward", name) for name in environments],
            floor=0,
            ceiling=1,
            opens_steps=False,
            empty="No evaluation yet: the first one plays policy version 0.",
        )
    ]
