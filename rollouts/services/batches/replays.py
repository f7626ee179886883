"""Train stored batches again, in another run and on record. The groups keep the state they ended in.

A group is in at most one step unless somebody orders a replay: then it is there under the next replay number.
"""

from collections.abc import Sequence

import numpy as np
from django.db import transaction
from django.db.models import Max

from rollouts.errors import Conflict, Invalid, RunOver
from rollouts.formats.arrays import MASK
from rollouts.formats.atropos.extras import ignored, lacks_logprobs
from rollouts.models import Batch, BatchItem, GroupTokens, Replay, Run, RunKind, ScoredGroup
from rollouts.selectors.next_batch import open_replays
from rollouts.states import RUN_TERMINAL, BatchState
from rollouts.storable import displayable


def order(run: Run, *, source: Run, first_step: int, last_step: int, actor: str, reason: str = "") -> Replay:
    """Have ``run`` train the batches of ``source`` from ``first_step`` to ``last_step`` next, before any of its own.

    Raises Invalid for steps that the source has not trained, Conflict for runs that cannot, that train at another
    temperature, or whose trainer would lack logprobs of the batches or ignore what came with them, RunOver when
    ``run`` ended. The caller checked that the actor may read the source and operate the run. Locks the run's row.
    """
    if not 0 <= first_step <= last_step:
        raise Invalid(fields={"first_step": "must be 0 or more, and not after last_step"})
    wanted = last_step - first_step + 1
    trained = Batch.objects.filter(run=source, step__range=(first_step, last_step), state=BatchState.TRAINED).count()
    if trained != wanted:
        fields = {"last_step": f"run {source.key} has trained {trained} of these {wanted} steps"}
        raise Invalid("Only steps that were trained can be replayed.", fields=fields)
    if run.pk == source.pk or run.kind not in {RunKind.RL, RunKind.EXTERNAL}:
        raise Conflict(f"Run {run.key} cannot replay run {source.key}: name another run that trains on batches.")
    sampled, trains = (each.parsed.sampling.temperature for each in (source, run))
    if sampled != trains:  # the trainer divides all its logits by that of its own run
        fault = f"Run {source.key} sampled at a temperature of {sampled}, and run {run.key} trains at {trains}"
        raise Conflict(f"{fault}: launch one with sampling.temperature={sampled} to replay into.")
    if run.parsed.is_trained and (fault := _fault(run, source, first_step, last_step)):
        raise Conflict(f"{fault}: replay into an external run.")
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        if run.state in RUN_TERMINAL:
            raise RunOver(f"Run {run.key} is {run.state}.")
        return Replay.objects.create(
            run=run,
            source=source,
            first_step=first_step,
            last_step=last_step,
            actor=displayable(actor)[:150],
            reason=displayable(reason)[:500],
        )


def _fault(run: Run, source: Run, first_step: int, last_step: int) -> str:
    """Why a trainer of ours cannot train the steps in ``run``; "" if it can. Only Atropos' items may be so."""
    tokens = GroupTokens.objects.filter(
        group__batch_items__batch__run=source,
        group__batch_items__batch__step__range=(first_step, last_step),
        extras__isnull=False,
    )
    steps = tokens.order_by("group__batch_items__batch__step")
    rows = steps.values_list("group__batch_items__batch__step", "extras", "loss_mask", "group__rollout_count")
    for step, extras, mask, count in rows.iterator(chunk_size=100):
        at = f"Step {step} of run {source.key} has groups"
        for why in ignored(extras, count).values():
            return f"{at} that run {run.key} would not train as they were sent. Of one: {why}"
        if run.parsed.needs_inference_logprobs and lacks_logprobs(extras, np.frombuffer(mask, MASK)):
            why = f"the loss of run {run.key} compares with those"
            return f"{at} without the logprobs that they were sampled at, and {why}"
    return ""


def take_source(run: Run) -> Batch | None:
    """The stored batch that the run's next one repeats, counted as taken; None: form one of its own. Run is locked."""
    replay = open_replays(run).first()
    if replay is None:
        return None
    source = Batch.objects.select_related("run").get(run=replay.source_id, step=replay.first_step + replay.taken)
    replay.taken += 1
    replay.save(update_fields=["taken"])
    return source


def numbers(group_ids: Sequence[int]) -> dict[int, int]:
    """The next replay number of each group. Locks the groups, so that two runs that replay one count apart."""
    list(ScoredGroup.objects.select_for_update(no_key=True).filter(pk__in=group_ids).order_by("id").values_list("pk"))
    highest = BatchItem.objects.filter(group__in=group_ids).values("group").annotate(highest=Max("replay"))
    return {row["group"]: row["highest"] + 1 for row in highest}
