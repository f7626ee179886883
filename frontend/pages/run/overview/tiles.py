"""The row of figures at the top of a run: what is it worth now, and is it sound."""

from dataclasses import dataclass

from frontend import numbers
from rollouts.models import Run
from rollouts.selectors import metrics
from rollouts.selectors.pages import EvaluationLine
from rollouts.states import EvaluationState

KL_WORTH_A_LOOK = 0.01
"""Per token. Above this, inference and trainer disagree more than rounding explains."""


@dataclass(frozen=True)
class Tile:
    """One figure with its unit, what it is compared with, and whether it deserves a look."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    tone: str = ""
    hint: str = ""


def of_run(run: Run, evaluations: list[EvaluationLine]) -> list[Tile]:
    """The figures for this kind of run, from the newest point of each key."""
    if run.kind == "eval":
        return _evaluation(evaluations, is_trained=False)
    return _sft(run, evaluations) if run.kind == "sft" else _rl(run, evaluations)


def lag_limit(run: Run) -> int | None:
    """Lag in steps above which groups are dropped; None when the run is too short for it."""
    limit = run.config.get("algorithm", {}).get("max_off_policy_steps")
    return limit if limit is not None and limit < run.max_steps else None


def _rl(run: Run, evaluations: list[EvaluationLine]) -> list[Tile]:
    keys = ["reward/mean", "lag/max", "lag/mean", "mismatch_kl/mean", "perf/throughput", "time/step"]
    newest = metrics.latest(run, keys)
    now = {key: value for key, (_, value) in newest.items()}
    if "time/step" in newest:  # generation may wait at a newer version already, or has not for long
        now |= metrics.at(run, newest["time/step"][0], ["time/wait_for_batch", "time/wait_for_policy"])
    gain = _gain(run, "reward/mean", newest)
    limit = lag_limit(run)
    dropped = f", dropped above {limit}" if limit is not None else ""
    lag, divergence = now.get("lag/max"), now.get("mismatch_kl/mean")
    return [
        Tile(
            "Reward now",
            numbers.number(now.get("reward/mean")),
            note="" if gain is None else f"{numbers.signed(gain)} since the first step",
            tone="" if gain is None or gain <= 0 else "good",
            hint="Mean reward of the newest batch",
        ),
        *_evaluation(evaluations),
        Tile(
            "Lag",
            numbers.number(lag),
            unit="" if lag is None else "steps, oldest",
            note="" if lag is None else f"mean {numbers.number(now.get('lag/mean'))}{dropped}",
            tone="warn" if lag is not None and limit and lag >= limit else "",
            hint="Steps between the batch and the oldest policy version in it",
        ),
        Tile(
            "Mismatch KL",
            numbers.number(divergence),
            unit="" if divergence is None else "per token",
            note="" if divergence is None else f"worth a look above {KL_WORTH_A_LOOK}",
            tone="warn" if divergence is not None and divergence > KL_WORTH_A_LOOK else "",
            hint="Divergence between the inference engine's and the trainer's probabilities",
        ),
        _throughput(now),
        Tile(
            "Trainer waits",
            numbers.percent(_share(now, "time/wait_for_batch")),
            note="" if "time/step" not in now else f"generation {numbers.percent(_share(now, 'time/wait_for_policy'))}",
            hint="Share of the newest step spent waiting for a batch; below it, generation waiting for a policy",
        ),
    ]


def _sft(run: Run, evaluations: list[EvaluationLine]) -> list[Tile]:
    keys = ["loss/mean", "optim/grad_norm", "optim/lr", "perf/throughput", "time/step"]
    newest = metrics.latest(run, keys)
    now = {key: value for key, (_, value) in newest.items()}
    gain = _gain(run, "loss/mean", newest)
    return [
        Tile(
            "Loss now",
            numbers.number(now.get("loss/mean")),
            unit="nats/token" if "loss/mean" in now else "",
            note="" if gain is None else f"{numbers.signed(gain)} since the first step",
            tone="" if gain is None or gain >= 0 else "good",
        ),
        *_evaluation(evaluations),
        Tile("Gradient norm", numbers.number(now.get("optim/grad_norm")), hint="Before clipping"),
        Tile("Learning rate", numbers.number(now.get("optim/lr"))),
        _throughput(now),
    ]


def _gain(run: Run, key: str, newest: dict[str, tuple[int, float]]) -> float | None:
    """How far the newest point of a metric is from the first; None: there is one at most."""
    first, last = metrics.first(run, key), newest.get(key)
    return last[1] - first[1] if first is not None and last is not None and first[0] < last[0] else None


def _evaluation(evaluations: list[EvaluationLine], *, is_trained: bool = True) -> list[Tile]:
    tiles = []
    for line in evaluations[:2]:
        label = "Evaluation" if len(evaluations) == 1 else f"Evaluation, {line.environment}"
        change = line.change
        if line.last is not None and line.last.state == EvaluationState.EXPIRED:
            played = (line.last.figures or {}).get("problems")
            note = f"{numbers.count(played)} of {numbers.count(line.last.problems)} problems"
        elif line.first is not None and line.last is not None and change is not None:
            note = f"{numbers.number(line.first.reward_mean)} at v{line.first.measured} ({numbers.signed(change)})"
        elif line.first is not None:
            note = f"before training, at v{line.first.version}" if is_trained else ""
        else:
            note = "not finished yet"
        if line.playing is not None:
            note = f"v{line.playing.version}: {line.playing.cursor} of {line.playing.problems} handed out"
        tiles.append(
            Tile(
                label,
                numbers.number(line.last.reward_mean if line.last else None),
                unit=f"at v{line.last.measured}" if line.last else "",
                note=note,
                tone="good" if change is not None and change > 0 else "",
                hint="Mean reward on held-out problems: the newest finished evaluation",
            )
        )
    return tiles


def _throughput(now: dict[str, float]) -> Tile:
    speed = now.get("perf/throughput")
    return Tile(
        "Throughput",
        numbers.count(speed),
        unit="" if speed is None else "tokens/s",
        note="" if "time/step" not in now else f"{numbers.duration(now['time/step'])} per step",
        hint="Tokens trained per second in the newest step, without padding",
    )


def _share(now: dict[str, float], key: str) -> float | None:
    step_s = now.get("time/step")
    return min(1.0, now.get(key, 0.0) / step_s) if step_s else None
