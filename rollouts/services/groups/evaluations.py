"""Close evaluations: all problems played, or the deadline passed.

Lock order: evaluation -> leases -> groups.
"""

from django.db import transaction
from django.db.models import Avg, Count, Q
from django.db.models.functions import Now

from rollouts.models import Evaluation, Lease, Rollout, Run, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.services import metrics
from rollouts.services.groups import leases
from rollouts.services.transitions import DB_NOW, transition
from rollouts.states import EvaluationState, GroupState


def conclude(run: Run) -> None:
    """Close the run's evaluations that are complete or overdue; write their mean reward at their version's step."""
    open_evaluations = Evaluation.objects.filter(run=run, state=EvaluationState.PLAYING).annotate(
        settled=Count("groups", filter=~Q(groups__state=GroupState.PLAYING)),
        overdue=Q(deadline_at__lt=Now()),
    )
    for evaluation in open_evaluations.select_related("environment"):
        if evaluation.settled >= evaluation.problems:
            _close(run, evaluation, EvaluationState.DONE, None)
        elif evaluation.overdue:
            reason = Reason(ReasonCode.EVALUATION_LATE, settled=evaluation.settled, problems=evaluation.problems)
            _close(run, evaluation, EvaluationState.EXPIRED, reason)


def _close(run: Run, evaluation: Evaluation, to: EvaluationState, reason: Reason | None) -> None:
    with transaction.atomic():
        # The row first, which keeps new groups out; then the leases, which waits for those that are settling.
        row = Evaluation.objects.select_for_update(no_key=True).filter(pk=evaluation.pk, state=EvaluationState.PLAYING)
        if row.first() is None:
            return
        leases.end_all(Lease.objects.filter(group__evaluation=evaluation))
        late = ScoredGroup.objects.filter(evaluation=evaluation, state=GroupState.PLAYING).values_list("pk", flat=True)
        transition(
            ScoredGroup,
            late,
            to=GroupState.SURPLUS,
            actor="reconciler",
            reason=Reason(ReasonCode.EVALUATION_ENDED),
            settled_at=DB_NOW,
        )
        scored = Rollout.objects.filter(group__evaluation=evaluation, reward__isnull=False)
        figures = scored.aggregate(reward=Avg("reward"), tokens=Avg("trained_token_count"))
        transition(
            Evaluation,
            [evaluation.pk],
            to=to,
            actor="reconciler",
            reason=reason,
            finished_at=DB_NOW,
            reward_mean=figures["reward"],
        )
        if figures["reward"] is not None:
            name = evaluation.environment.name
            values = {
                f"eval/{name}/reward"[:100]: figures["reward"],
                f"eval/{name}/tokens"[:100]: figures["tokens"],
            }
            metrics.record(run, step=evaluation.version, values=values)
