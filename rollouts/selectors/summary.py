"""A finished run in a dozen numbers: did it learn, how fast, and who waited for whom."""

from dataclasses import dataclass

from django.db.models import Avg, Count, Max, Min, Sum

from rollouts.models import Batch, BatchItem, Evaluation, MetricPoint, Run
from rollouts.states import BatchState, EvaluationState


@dataclass(frozen=True)
class Summary:
    """None where the run has no such number (an SFT run generates nothing). Shares are of `training_s`."""

    steps: int
    rollouts: int
    """That were trained on."""
    training_s: float
    """From the first batch formed to the last one acknowledged."""
    eval_reward_before: float | None
    """Of the oldest version evaluated; the mean over environments, as is the next one."""
    eval_reward_after: float | None
    """Of the newest version evaluated."""
    generated_tokens_per_s: float | None
    trained_tokens_per_s: float | None
    """Without padding."""
    max_lag: int | None
    mismatch_kl_mean: float | None
    """Over all steps: what the engine makes of the weights, and how old they were."""
    mismatch_kl_on_policy: float | None
    """Over the steps whose rollouts all came from the weights that trained on them: the engine's part alone."""
    wait_for_batch_share: float | None
    """Of the time, the trainer waited for groups."""
    wait_for_policy_share: float | None
    """Of the time, generation waited for a newer policy."""


def summarise(run: Run) -> Summary:
    """Compute the summary of a run from its batches, evaluations and metric points. A handful of aggregate queries."""
    trained = Batch.objects.filter(run=run, state=BatchState.TRAINED).aggregate(
        began=Min("formed_at"), ended=Max("trained_at"), tokens=Sum("token_count")
    )
    training_s = (trained["ended"] - trained["began"]).total_seconds() if trained["ended"] else 0.0
    rows = MetricPoint.objects.filter(run=run).values("key").annotate(Sum("value"), Avg("value"), Max("value"))
    points = {row["key"]: row for row in rows}

    def total(key: str) -> float | None:
        return points[key]["value__sum"] if key in points else None

    def per_s(amount: float | None) -> float | None:
        return round(amount / training_s, 4) if amount is not None and training_s else None

    items = BatchItem.objects.filter(batch__run=run, batch__state=BatchState.TRAINED)
    lag = points.get("lag/max")
    mismatch = points.get("mismatch_kl/mean")
    before, after = _evaluated(run)
    return Summary(
        steps=run.next_step,
        rollouts=items.aggregate(rollouts=Sum("group__rollout_count"))["rollouts"] or 0,
        training_s=round(training_s, 3),
        eval_reward_before=before,
        eval_reward_after=after,
        generated_tokens_per_s=per_s(total("generation/tokens")),
        trained_tokens_per_s=per_s(trained["tokens"]),
        max_lag=int(lag["value__max"]) if lag else None,
        mismatch_kl_mean=mismatch["value__avg"] if mismatch else None,
        mismatch_kl_on_policy=_mismatch_on_policy(run),
        wait_for_batch_share=per_s(total("time/wait_for_batch")),
        wait_for_policy_share=per_s(total("time/wait_for_policy")),
    )


def _mismatch_on_policy(run: Run) -> float | None:
    points = MetricPoint.objects.filter(run=run)
    on_policy = points.filter(key="lag/max", value=0).values("step")
    found: float | None = points.filter(key="mismatch_kl/mean", step__in=on_policy).aggregate(Avg("value"))[
        "value__avg"
    ]
    return found


def _evaluated(run: Run) -> tuple[float | None, float | None]:
    """Mean evaluation reward of the oldest and of the newest version that has been evaluated completely."""
    done = (
        Evaluation.objects.filter(run=run, state=EvaluationState.DONE, reward_mean__isnull=False)
        .values("version")
        .annotate(reward=Avg("reward_mean"), environments=Count("pk"))
        .order_by("version")
    )
    complete = [row["reward"] for row in done if row["environments"] == len(run.environment_names)]
    return (complete[0], complete[-1]) if complete else (None, None)
