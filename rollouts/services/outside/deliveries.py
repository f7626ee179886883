"""Batches on their way to a trainer that cannot acknowledge: handed out until one has arrived whole, then the next.

    take ─► being sent, leased ─► finish: sent ─► the trainer asks for more: acknowledged, its groups trained
      ▲             │
      └─ broke off, or the sender died: the same bytes again, before any new batch

Two requests at the same time get two batches. A lease is renewed while its batch is being sent; its token, not the
time, decides who may renew or finish it. Lock order: run -> attempt, clients, deliveries -> batches -> groups.
"""

import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from rollouts.errors import Conflict
from rollouts.models import Attempt, BatchEncoding, Delivery, Run, RunKind, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors.clients import silent
from rollouts.selectors.next_batch import Outlook, look_for, next_step
from rollouts.services.batches import forming
from rollouts.services.batches.forming import Outgoing
from rollouts.services.outside import attempts, clients
from rollouts.services.runs import arrivals
from rollouts.services.transitions import transition
from rollouts.states import AttemptState, GroupState, RunState

TERM_S = 15
"""A lease that was not renewed for so long has expired: the next request gets the batch."""
RENEW_S = 4.0


def take(run: Run) -> Outgoing | None:
    """The next batch for a trainer of this run: one that did not arrive, or a new one; None if there is none yet.

    To ask is to acknowledge: batches that were sent completely before are trained. Raises NotRegistered without an open
    attempt, Conflict for a run with a trainer of ours, RunOver after the end. Asking in vain locks and writes nothing.
    """
    if run.kind != RunKind.EXTERNAL:
        raise Conflict(f"Run {run.key} has a trainer of its own, which fetches its batches.")
    run = Run.objects.get(pk=run.pk)
    seen, outlook = attempts.open_of(run), None
    if run.state == RunState.PENDING:
        return None
    if not _has_to_write(run, seen):
        outlook = look_for(seen, run)
        if not outlook.is_worth_forming:
            return None
    with suppress(forming.Overtaken), transaction.atomic():
        run, attempt = attempts.enter_open(run)
        clients.lapse_silent(attempt)
        arrivals.acknowledge_sent(run, actor=attempts.TRAINER, reason=Reason(ReasonCode.MORE_ASKED_FOR))
        return _repeat(attempt) or _form(run, attempt, outlook if attempt == seen else None)
    return None


def renew(outgoing: Outgoing) -> bool:
    """Renew the lease while the batch is being sent. False: it was lost to another request or a reset; stop."""
    return _held(outgoing).update(expires_at=Now() + timedelta(seconds=TERM_S)) > 0


def release(outgoing: Outgoing) -> None:
    """Give the lease back: the batch did not arrive, and the next request gets it."""
    _held(outgoing).update(expires_at=Now())


def finish(outgoing: Outgoing) -> bool:
    """Mark the batch as sent: all of it was handed to the connection. False: the lease was lost before."""
    if not _held(outgoing).update(sent_at=Now()):
        return False
    conclude(Run.objects.get(batches=outgoing.batch))
    return True


def conclude(run: Run) -> None:
    """Acknowledge what was sent once the last batch of a run is formed: nobody asks for more after it, and the run ends
    when all have arrived, in whatever order. Locks the run."""
    if run.state != RunState.RUNNING or next_step(run) < run.max_steps:
        return
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        if run.state == RunState.RUNNING:
            arrivals.acknowledge_sent(run, actor=attempts.TRAINER, reason=Reason(ReasonCode.LAST_BATCH_SENT))


def _held(outgoing: Outgoing) -> QuerySet[Delivery]:
    assert outgoing.token is not None, "it was taken"
    return Delivery.objects.filter(
        batch=outgoing.batch, token=outgoing.token, sent_at__isnull=True, abandoned_at__isnull=True
    )


def abandon(run: Run, attempt: Attempt, *, reason: Reason) -> None:
    """Archive the groups of batches that did not arrive; their leases end with them. The run is locked."""
    # Locked, so that none of them can arrive between this look and the update.
    under_way = _under_way(attempt).select_for_update(no_key=True).order_by("pk")
    broken = list(under_way.values_list("batch_id", flat=True))
    groups = ScoredGroup.objects.filter(batch_items__batch__in=broken).values_list("pk", flat=True)
    transition(
        ScoredGroup, groups, to=GroupState.SURPLUS, expect=[GroupState.BATCHED], actor=attempts.TRAINER, reason=reason
    )
    Delivery.objects.filter(pk__in=broken).update(abandoned_at=Now(), token=uuid.uuid4())


def _under_way(attempt: Attempt) -> QuerySet[Delivery]:
    return Delivery.objects.filter(attempt=attempt, sent_at__isnull=True, abandoned_at__isnull=True)


def _has_to_write(run: Run, attempt: Attempt) -> bool:
    """Whether there is something to write down or to repeat, whatever waits. Trainers ask many times a second."""
    if attempt.state == AttemptState.OPEN or run.state == RunState.STARTING:
        return True
    if arrivals.unsettled(run).filter(batch__step=run.next_step).exclude(sent_at=None, abandoned_at=None).exists():
        return True
    return _under_way(attempt).filter(expires_at__lt=Now()).exists() or silent(attempt).exists()


def _repeat(attempt: Attempt) -> Outgoing | None:
    """The oldest batch that did not arrive, from now on under another token."""
    delivery = (
        _under_way(attempt)
        .select_for_update(of=("self",), no_key=True)
        .filter(expires_at__lt=Now())
        .select_related("batch")
        .order_by("batch__step")
        .first()
    )
    if delivery is None:
        return None
    token = uuid.uuid4()
    Delivery.objects.filter(pk=delivery.pk).update(
        token=token, taken_at=Now(), expires_at=Now() + timedelta(seconds=TERM_S)
    )
    return _hand_out(Outgoing(delivery.batch, forming.body_of(delivery.batch)), token)


def _form(run: Run, attempt: Attempt, outlook: Outlook | None) -> Outgoing | None:
    """The next batch; ``outlook`` is what was seen of it without a lock, and stands unless one was formed since."""
    step = next_step(run)
    if step >= run.max_steps:
        return None
    if outlook is None or outlook.step != step:
        outlook = look_for(attempt, run)
    formed = forming.form(run, step, outlook, encoding=BatchEncoding.ATROPOS)
    if formed is None:
        return None
    if attempt.first_step is None:
        Attempt.objects.filter(pk=attempt.pk).update(first_step=step)
    token = uuid.uuid4()
    Delivery.objects.create(
        batch=formed.batch, attempt=attempt, token=token, expires_at=Now() + timedelta(seconds=TERM_S)
    )
    return _hand_out(formed, token)


def _hand_out(outgoing: Outgoing, token: uuid.UUID) -> Outgoing:
    forming.count_delivery(outgoing.batch, actor=attempts.TRAINER)
    return replace(outgoing, token=token)
