"""Close evaluations: all problems played, the deadline passed, or their run over.

Lock order: evaluation -> leases -> groups.
"""

from django.db import connection, transaction
from django.db.models import Avg, Count, Max, Min, Q
from django.db.models.functions import Now

from environments import registry
from rollouts.errors import Invalid
from rollouts.models import Evaluation, Lease, PolicyVersion, Rollout, Run, RunEnvironment, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import evaluations as evaluation_selectors
from rollouts.selectors import trials
from rollouts.services import metrics
from rollouts.services.groups import leases
from rollouts.services.transitions import DB_NOW, transition
from rollouts.sql import load
from rollouts.states import EvaluationState, GroupState, PolicyVersionState, RunState


def conclude(run: Run) -> None:
    """Close the run's evaluations that are complete or overdue; write which versions they measured, and their mean
    reward at the step of the version they were opened for."""
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


def note_count(run: Run, environment: str, count: int) -> None:
    """How many problems an environment of the run has to evaluate on. Raises Invalid for none."""
    if count < 1:
        raise Invalid(f"{environment} has no problems to evaluate on.")
    RunEnvironment.objects.filter(run=run, name=environment).update(problem_count=count)


def advance(run: Run) -> None:
    """Count what an eval run has measured; the last version ends it, unless a trial goes on. Locks the run's row."""
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        was_live = [PolicyVersionState.LIVE, PolicyVersionState.SUPERSEDED]
        measured = PolicyVersion.objects.filter(run=run, state__in=was_live).count()
        measured -= Evaluation.objects.filter(run=run, state=EvaluationState.PLAYING).exists()
        if measured > run.next_step:
            run.next_step = measured
            run.save(update_fields=["next_step"])
        if measured == run.max_steps and not trials.are_open(run):
            transition(
                Run,
                [run.pk],
                to=RunState.FINISHING,
                expect=[RunState.RUNNING],
                actor="reconciler",
                trainer_finished_at=DB_NOW,
            )


def end(run: Run, evaluation: Evaluation, to: EvaluationState, reason: Reason | None, *, actor: str) -> None:
    """Write what came of an evaluation of which no group is played any more. Call it with its row locked."""
    scored = Rollout.objects.filter(group__evaluation=evaluation, reward__isnull=False)
    figures = scored.aggregate(reward=Avg("reward"), tokens=Avg("trained_token_count"))
    played = ScoredGroup.objects.filter(evaluation=evaluation, state=GroupState.EVALUATED)
    measured = played.aggregate(first=Min("min_policy_version"), last=Max("max_policy_version"))
    transition(
        Evaluation,
        [evaluation.pk],
        to=to,
        actor=actor,
        reason=reason,
        finished_at=DB_NOW,
        reward_mean=figures["reward"],
        min_policy_version=measured["first"],
        max_policy_version=measured["last"],
        figures=evaluation_selectors.figures(evaluation),
    )
    if figures["reward"] is not None:
        name = evaluation.environment.name
        values = {
            f"eval/{name}/reward"[:100]: figures["reward"],
            f"eval/{name}/tokens"[:100]: figures["tokens"],
        } | {f"eval/{name}/{key}"[:100]: value for key, value in _overall(run, evaluation).items()}
        metrics.record(run, step=evaluation.version, values=values)


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
        end(run, evaluation, to, reason, actor="reconciler")


def _overall(run: Run, evaluation: Evaluation) -> dict[str, float]:
    """What each seat won, and what one of our environments makes of the means of its metrics."""
    scored = Rollout.objects.filter(group__evaluation=evaluation, reward__isnull=False)
    seats = scored.exclude(seat="").values_list("seat").annotate(Avg("reward")).order_by("seat")
    figures = {f"{seat}/reward": mean for seat, mean in seats}
    name = run.environment_ref(evaluation.environment.name).name
    if registry.is_built_in(name):  # code of others does not run here
        with connection.cursor() as cursor:
            cursor.execute(load("metric_means"), {"evaluation_id": evaluation.pk})
            figures |= registry.find_class(name).overall(dict(cursor.fetchall()))
    return figures
