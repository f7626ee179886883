"""Promise GPUs to runs, and take them back: no GPU is two runs'."""

from collections.abc import Sequence
from contextlib import suppress

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from rollouts.models import Event, Placement, Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.states import RunState


def held(run: Run) -> list[str]:
    """The GPUs that are promised to a run, as CUDA_VISIBLE_DEVICES names them, in the order in which it got them."""
    return list(Placement.objects.filter(run=run, released_at=None).order_by("id").values_list("gpu", flat=True))


def promise(run: Run, host: str, gpus: Sequence[str], wanted: int) -> Reason | None:
    """Promise a run ``wanted`` of the ``gpus`` of a machine; returns what it waits for, or None when it has them.

    All or none, and runs that wait have their turn in the order in which they were launched: a large one is not passed
    by small ones for ever.
    """
    if not wanted or held(run):
        return None
    taken = Placement.objects.filter(host=host, released_at=None, gpu__in=gpus).select_related("run")
    busy = {each.gpu: _named(each.run, run) for each in taken}
    free = [gpu for gpu in gpus if gpu not in busy]
    before = _waits_before(run, host)
    if before is None and len(free) >= wanted:
        with suppress(IntegrityError), transaction.atomic():  # one of them was promised to another just now
            Placement.objects.bulk_create(Placement(run=run, host=host, gpu=gpu) for gpu in free[:wanted])
            return None
    holders = ", ".join(sorted(set(busy.values())))
    turn = before and _named(before, run)
    return Reason(ReasonCode.GPUS_TAKEN, wanted=wanted, host=host, free=len(free), holders=holders, before=turn)


def _named(run: Run, reader: Run) -> str:
    """A run, as those who see another may read of it: of other projects they learn no key."""
    return f"run {run.key}" if run.project_id == reader.project_id else "a run of another project"


def release(run: Run) -> None:
    """Take back what a run was promised, when no process of it is alive. Called where its end is recorded."""
    Placement.objects.filter(run=run, released_at=None).update(released_at=Now())


def _waits_before(run: Run, host: str) -> Run | None:
    """The run that was launched first of those that wait for GPUs of the machine, unless it is this one."""
    noted = Event.objects.filter(
        object_kind="run", object_id=OuterRef("pk"), reason_code=ReasonCode.GPUS_TAKEN, reason_params__host=host
    )
    served = Placement.objects.filter(run=OuterRef("pk"), released_at=None)
    waiting = Run.objects.filter(Exists(noted), ~Exists(served), state=RunState.PENDING)
    return waiting.filter(pk__lt=run.pk).order_by("pk").first()
