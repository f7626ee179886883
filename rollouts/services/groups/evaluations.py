"""Close evaluations: all problems played, the deadline passed, or their run over. Then work out what they found.

    playing ─► closed: one transaction, with the mean reward ─► figures stored

Intervals take seconds where there are many problems, and no transaction may be idle for so long, let alone hold locks.
So a closed evaluation has no figures for a moment. Of what is closed nothing changes any more: whoever dies before they
are stored is made up for by the next pass over the run, and no run ends before all of its evaluations have theirs.

Lock order: evaluation -> leases -> groups.
"""

from django.db import connection, transaction
from django.db.models import Avg, Count, Exists, F, Max, Min, OuterRef, Q, QuerySet
from django.db.models.functions import Least, Now

from environments import registry
from rollouts import bell
from rollouts.errors import Invalid
from rollouts.models import Evaluation, Lease, PolicyVersion, Rollout, Run, RunEnvironment, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import evaluations as evaluation_selectors
from rollouts.selectors import trials
from rollouts.services import metrics
from rollouts.services.groups import leases
from rollouts.services.transitions import DB_NOW, transition
from rollouts.sql import load
from rollouts.states import EVALUATION_TERMINAL, EvaluationState, GroupState, PolicyVersionState, RunState


def conclude(run: Run) -> None:
    """Close the run's evaluations that are complete or overdue; write which versions they measured, their mean reward
    at the step of the version they were opened for, and the figures of all that are closed.

    Not to be called in a transaction. Locks each evaluation, then its leases and groups.
    """
    is_settled = ~Q(groups__state=GroupState.PLAYING) & Q(groups__problem_index__lt=F("problems"))
    open_evaluations = Evaluation.objects.filter(run=run, state=EvaluationState.PLAYING).annotate(
        settled=Count("groups", filter=is_settled),
        overdue=Q(deadline_at__lt=Now()),
    )
    late = Reason(ReasonCode.EVALUATION_ENDED)
    for evaluation in open_evaluations.select_related("environment"):
        if evaluation.settled >= evaluation.problems:
            _close(run, evaluation, EvaluationState.DONE, None, late=late, actor="reconciler")
        elif evaluation.overdue:
            reason = Reason(ReasonCode.EVALUATION_LATE, settled=evaluation.settled, problems=evaluation.problems)
            _close(run, evaluation, EvaluationState.EXPIRED, reason, late=late, actor="reconciler")
    _store_figures(run)


def end(run: Run, reason: Reason, *, actor: str) -> None:
    """Close what is still played of a run that ends now, with what it found by then. Idempotent.

    Not to be called in a transaction. Locks each evaluation, then its leases and groups.
    """
    playing = Evaluation.objects.filter(run=run, state=EvaluationState.PLAYING)
    for evaluation in playing.select_related("environment").order_by("id"):
        _close(run, evaluation, EvaluationState.EXPIRED, reason, late=reason, actor=actor)
    _store_figures(run)


def note_count(run: Run, environment: str, count: int) -> None:
    """How many problems an environment of the run has to evaluate on. An evaluation that was opened before anybody knew
    is cut to them: what was handed out beyond are problems of it once more. Raises Invalid for none.

    Locks the run's row, so that none is opened meanwhile, the environment's, so that none is handed out, then as `end`.
    """
    if count < 1:
        raise Invalid(f"{environment} has no problems to evaluate on.")
    with transaction.atomic():
        Run.objects.select_for_update(no_key=True).only("pk").get(pk=run.pk)
        RunEnvironment.objects.filter(run=run, name=environment).update(problem_count=count)
        playing = Evaluation.objects.filter(run=run, environment__name=environment, state=EvaluationState.PLAYING)
        too_long = playing.filter(problems__gt=count).select_for_update(of=("self",), no_key=True)
        for evaluation in too_long.order_by("id"):
            beyond = ScoredGroup.objects.filter(evaluation=evaluation, problem_index__gte=count)
            _give_up(beyond, Reason(ReasonCode.NO_SUCH_PROBLEM, count=count), actor="control plane")
            playing.filter(pk=evaluation.pk).update(problems=count, cursor=Least("cursor", count))


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


def _close(
    run: Run, evaluation: Evaluation, to: EvaluationState, reason: Reason | None, *, late: Reason, actor: str
) -> None:
    """``late``: why its groups that are still played come to nothing."""
    with transaction.atomic():
        # The row first, which keeps new groups out; then the leases, which waits for those that are settling.
        row = Evaluation.objects.select_for_update(no_key=True).filter(pk=evaluation.pk, state=EvaluationState.PLAYING)
        if row.first() is None:
            return
        _give_up(ScoredGroup.objects.filter(evaluation=evaluation), late, actor=actor)
        _store_means(run, evaluation, to, reason, actor=actor)


def _give_up(groups: QuerySet[ScoredGroup], reason: Reason, *, actor: str) -> None:
    """End those of an evaluation's groups that are still played. Waits for those that are settling."""
    leases.end_all(Lease.objects.filter(group__in=groups))
    left = groups.filter(state=GroupState.PLAYING).values_list("pk", flat=True)
    transition(ScoredGroup, left, to=GroupState.SURPLUS, actor=actor, reason=reason, settled_at=DB_NOW)


def _store_means(run: Run, evaluation: Evaluation, to: EvaluationState, reason: Reason | None, *, actor: str) -> None:
    """What the database adds up of an evaluation of which no group is played any more, and with it the last state."""
    scored = Rollout.objects.filter(group__evaluation=evaluation, reward__isnull=False)
    means = scored.aggregate(reward=Avg("reward"), tokens=Avg("trained_token_count"))
    played = ScoredGroup.objects.filter(evaluation=evaluation, state=GroupState.EVALUATED)
    measured = played.aggregate(first=Min("min_policy_version"), last=Max("max_policy_version"))
    transition(
        Evaluation,
        [evaluation.pk],
        to=to,
        actor=actor,
        reason=reason,
        finished_at=DB_NOW,
        reward_mean=means["reward"],
        min_policy_version=measured["first"],
        max_policy_version=measured["last"],
    )
    if means["reward"] is not None:
        seats = scored.exclude(seat="").values_list("seat").annotate(Avg("reward")).order_by("seat")
        by_seat = {f"{seat}/reward": mean for seat, mean in seats}
        layers = [
            {f"eval/{evaluation.environment.name}/{key}": value for key, value in layer.items()}
            for layer in (means, _overall(run, evaluation), by_seat)
        ]
        metrics.record(run, step=evaluation.version, values=metrics.fitting(*layers))


def _overall(run: Run, evaluation: Evaluation) -> dict[str, float]:
    """What one of our environments makes of the means of its metrics."""
    name = run.environment_ref(evaluation.environment.name).name
    if not registry.is_built_in(name):  # code of others does not run here
        return {}
    with connection.cursor() as cursor:
        cursor.execute(load("metric_means"), {"evaluation_id": evaluation.pk})
        return registry.find_class(name).overall(dict(cursor.fetchall()))


def _store_figures(run: Run) -> None:
    """Work out what the closed evaluations found that have no figures yet. The first to store them is believed."""
    settled = ScoredGroup.objects.filter(evaluation=OuterRef("pk"), settled_at__isnull=False)
    has_any = Exists(settled.exclude(state=GroupState.SURPLUS))
    lacking = Evaluation.objects.filter(has_any, run=run, state__in=EVALUATION_TERMINAL, figures__isnull=True)
    for evaluation in lacking.order_by("id"):
        evaluation.run = run
        lacking.filter(pk=evaluation.pk).update(figures=evaluation_selectors.figures(evaluation))
        bell.ring_after_commit(run.pk, is_flow=True)
