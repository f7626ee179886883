"""Batches that reached a trainer which cannot acknowledge: what was sent whole counts as trained."""

from django.db.models import QuerySet

from rollouts.models import Batch, Delivery, Run, ScoredGroup
from rollouts.reasons import Reason
from rollouts.services.runs import trainer_writes
from rollouts.services.transitions import DB_NOW, transition
from rollouts.states import BatchState, GroupState


def unsettled(run: Run) -> QuerySet[Delivery]:
    """Deliveries of steps that nothing was written of yet."""
    return Delivery.objects.filter(batch__run=run, batch__step__gte=run.next_step)


def acknowledge_sent(run: Run, *, actor: str, reason: Reason) -> None:
    """Count batches that were sent completely as trained, in the order of their steps. The run is locked.

    One that is still being sent holds up those after it; one that a reset abandoned is passed over. When the last step
    of the run is behind, its training is over.
    """
    behind, arrived = 0, []
    for delivery in unsettled(run).order_by("batch__step").values("batch_id", "batch__step", "sent_at", "abandoned_at"):
        is_over = delivery["sent_at"] or delivery["abandoned_at"]
        if delivery["batch__step"] != run.next_step + behind or not is_over:
            break
        behind += 1
        if delivery["sent_at"]:
            arrived.append(delivery["batch_id"])
    if not behind:
        return
    transition(Batch, arrived, to=BatchState.TRAINED, actor=actor, reason=reason, trained_at=DB_NOW)
    groups = ScoredGroup.objects.filter(batch_items__batch__in=arrived).values_list("pk", flat=True)
    transition(ScoredGroup, groups, to=GroupState.TRAINED, actor=actor, reason=reason)
    run.next_step += behind
    run.save(update_fields=["next_step"])
    if run.next_step >= run.max_steps:
        trainer_writes.finish_training(run, epoch=run.epoch)
