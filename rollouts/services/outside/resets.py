"""What `/reset_data` means here: the attempt is over, and nothing is lost.

Groups that waited, and batches that did not arrive whole, are archived with a reason; batches that did were trained.
"""

from django.db import transaction

from rollouts.models import Run, RunKind, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.groups.intake import close_gate
from rollouts.services.outside import attempts, deliveries
from rollouts.services.runs import arrivals
from rollouts.services.transitions import transition
from rollouts.states import GROUP_WAITING, GroupState

ACTOR = "atropos client"


def reset(run: Run) -> None:
    """Close the attempt and raise the run's epoch: what is still sent or written in its name goes nowhere.

    Opens no new one: the next registration does, and groups that come before it wait for that. A run with a trainer of
    ours is left alone. Raises RunOver after the end of the run. Locks the run and closes its gate, so that a group on
    its way is either archived or belongs to the next attempt.
    """
    if run.kind != RunKind.EXTERNAL:
        return
    with transaction.atomic():
        run = attempts.lock(run)
        close_gate(run)
        attempt = attempts.current(run)
        if attempt is None:
            reason = Reason(ReasonCode.RESET_BEFORE, number=attempts.next_number(run))
        else:
            reason = Reason(ReasonCode.RESET, number=attempt.number)
        waiting = ScoredGroup.objects.filter(run=run, state__in=GROUP_WAITING).values_list("pk", flat=True)
        transition(ScoredGroup, waiting, to=GroupState.SURPLUS, actor=ACTOR, reason=reason)
        if attempt is None:
            return
        deliveries.abandon(run, attempt, reason=reason)
        arrived = Reason(ReasonCode.ARRIVED_BEFORE_RESET, number=attempt.number)
        arrivals.acknowledge_sent(run, actor=attempts.TRAINER, reason=arrived)
        attempts.close(attempt, actor=ACTOR)
        run.epoch += 1
        run.save(update_fields=["epoch"])
