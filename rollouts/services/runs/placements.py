"""Promise GPUs, cores and memory of this machine to runs, and take them back: none is two runs'.

There is one machine, that of the reconciler, whatever it was called when something was promised.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from rollouts.models import Event, Placement, PlacementKind, Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.states import RUN_TERMINAL, RunState

_TAKEN = {
    PlacementKind.GPU: ReasonCode.GPUS_TAKEN,
    PlacementKind.CORE: ReasonCode.CORES_TAKEN,
    PlacementKind.MEMORY: ReasonCode.MEMORY_TAKEN,
}


class Wish(NamedTuple):
    """What a run wants of the machine."""

    kind: PlacementKind
    there: Sequence[str]
    """Those that the machine has."""
    number: int


class _Found(NamedTuple):
    wish: Wish
    free: list[str]
    busy: dict[str, str]
    before: Run | None

    @property
    def is_there(self) -> bool:
        return self.before is None and len(self.free) >= self.wish.number


def held(run: Run, kind: PlacementKind) -> list[str]:
    """What of a kind is promised to a run, in the order in which it got it."""
    found = Placement.objects.filter(run=run, kind=kind, released_at=None)
    return list(found.order_by("id").values_list("unit", flat=True))


def taken(run: Run, kind: PlacementKind) -> list[str]:
    """What of a kind was promised to a run that is not over, and is promised to it no more."""
    found = Placement.objects.filter(run=run, kind=kind).exclude(released_at=None).exclude(run__state__in=RUN_TERMINAL)
    return list(found.exclude(unit__in=held(run, kind)).order_by("id").values_list("unit", flat=True))


def promise(run: Run, host: str, wishes: Sequence[Wish]) -> Reason | None:
    """Promise a run what it wants of the machine; returns what it waits for, or None when it has it.

    ``host`` is what the machine is called, for people.

    All or nothing, and runs that wait have their turn in the order in which they were launched: a large one is not
    passed for ever by small ones that want the same.
    """
    wishes = [wish for wish in wishes if wish.number]
    if not wishes or Placement.objects.filter(run=run, released_at=None).exists():
        return None
    found = [_look(run, wish) for wish in wishes]
    if all(each.is_there for each in found):
        with suppress(IntegrityError), transaction.atomic():  # one of them was promised to another just now
            Placement.objects.bulk_create(
                Placement(run=run, host=host, kind=each.wish.kind, unit=unit)
                for each in found
                for unit in each.free[: each.wish.number]
            )
            return None
    missed = next((each for each in found if not each.is_there), found[0])
    return Reason(
        _TAKEN[missed.wish.kind],
        wanted=missed.wish.number,
        host=host,
        free=len(missed.free),
        holders=", ".join(sorted(set(missed.busy.values()))),
        before=missed.before and _named(missed.before.key, missed.before.project_id, run),
    )


def _look(run: Run, wish: Wish) -> _Found:
    taken = Placement.objects.filter(kind=wish.kind, released_at=None).values_list("unit", "run__key", "run__project")
    are_numbers = {unit.isdigit() for unit in wish.there}
    busy = {
        unit: _named(key, project, run)
        for unit, key, project in taken
        if unit in wish.there or unit.isdigit() not in are_numbers
    }
    # A GPU that somebody has by its number may be any of those that are listed by their UUIDs now.
    is_told_apart = busy.keys() <= set(wish.there)
    free = [unit for unit in wish.there if unit not in busy] if is_told_apart else []
    return _Found(wish, free, busy, _waits_before(run, wish.kind))


def _named(key: str, project: int, reader: Run) -> str:
    """A run, as those who see another may read of it: of other projects they learn no key."""
    return f"run {key}" if project == reader.project_id else "a run of another project"


def release(run: Run) -> None:
    """Take back what a run was promised, when no process of it is alive. Called where its end is recorded."""
    Placement.objects.filter(run=run, released_at=None).update(released_at=Now())


def _waits_before(run: Run, kind: PlacementKind) -> Run | None:
    """The run that was launched first of those that wait for such, unless it is this one."""
    noted = Event.objects.filter(object_kind="run", object_id=OuterRef("pk"), reason_code=_TAKEN[kind])
    served = Placement.objects.filter(run=OuterRef("pk"), released_at=None)
    waiting = Run.objects.filter(Exists(noted), ~Exists(served), state=RunState.PENDING)
    return waiting.filter(pk__lt=run.pk).order_by("pk").first()
