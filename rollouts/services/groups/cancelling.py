"""End groups that are being played and could not be trained any more: too old for every batch to come, or not needed.

Their leases end with them, so the driver that plays one finds its lease lost when it renews it, and drops the episodes.
Lock order: leases, then groups, each in id order; a lease that is being settled now is left alone.
"""

from django.db import models, transaction

from rollouts.models import Lease, Purpose, Run, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors.next_batch import Measure, next_step
from rollouts.services.transitions import DB_NOW, transition
from rollouts.states import GroupState


def cancel_stale(run: Run) -> list[int]:
    """End groups whose policy version is too far behind the next batch, by ``max_off_policy_steps``; return their ids.

    A group counts as old as the version that was live when it was claimed.
    """
    step = next_step(run)
    oldest = step - run.parsed.algorithm.max_off_policy_steps
    if oldest <= 0:
        return []
    with transaction.atomic():
        old = list(_in_play(run).filter(policy_version__lt=oldest))
        cancelled: list[int] = []
        for version in sorted({lease.policy_version for lease in old if lease.policy_version is not None}):
            ids = [lease.group_id for lease in old if lease.policy_version == version]
            reason = Reason(ReasonCode.LAGGED_IN_PLAY, version=version, step=step)
            cancelled += _cancel(ids, to=GroupState.STALE, actor="reconciler", reason=reason)
    return cancelled


def cancel_surplus(run: Run, *, step: int, newest: int, measure: Measure) -> list[int]:
    """End groups that the batch of ``step`` has overtaken, begun before ``newest``, its newest group: no more than were
    begun beyond what it holds.

    Of an oversampled batch those are what it could do without. Return their ids. The caller has the run's row locked.
    """
    spare, ids = measure.beyond, list[int]()
    with transaction.atomic():
        slow = _in_play(run).filter(group_id__lt=newest).select_related("group__environment")
        for lease in slow[: spare // measure.smallest]:
            size = measure.groups[lease.group.environment.name]
            if size <= spare:
                spare -= size
                ids.append(lease.group_id)
        reason = Reason(ReasonCode.OVERSAMPLED, step=step)
        return _cancel(ids, to=GroupState.SURPLUS, actor="control plane", reason=reason)


def _in_play(run: Run) -> models.QuerySet[Lease]:
    leases = Lease.objects.select_for_update(of=("self",), skip_locked=True)
    return leases.filter(run=run, group__purpose=Purpose.TRAIN).order_by("group_id")


def _cancel(ids: list[int], *, to: GroupState, actor: str, reason: Reason) -> list[int]:
    moved = transition(
        ScoredGroup, ids, to=to, expect=[GroupState.PLAYING], actor=actor, reason=reason, settled_at=DB_NOW
    )
    Lease.objects.filter(group_id__in=moved).delete()
    return moved
