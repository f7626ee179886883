"""Whether the batches of a run still are what was trained: each is encoded anew and compared with its hash."""

from collections.abc import Iterator
from dataclasses import dataclass

from rollouts.models import Batch, Run
from rollouts.services.batches import forming


@dataclass(frozen=True)
class Verdict:
    """What came of one batch."""

    batch_id: int
    step: int
    fault: str
    """Why it is not the one that was hashed; empty: it is."""


def verify_batches(run: Run) -> Iterator[Verdict]:
    """Look at every batch ever formed for the run, in the order of steps, one at a time."""
    step = -1
    while (batch := _after(run, step)) is not None:
        step = batch.step
        yield Verdict(batch.pk, step, _fault(batch))


def _after(run: Run, step: int) -> Batch | None:
    return Batch.objects.select_related("run").filter(run=run, step__gt=step).order_by("step").first()


def _fault(batch: Batch) -> str:
    try:
        forming.body_of(batch)
    except AssertionError as error:
        return str(error)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # rows that fit together no more
        return f"batch {batch.pk} cannot be encoded: {type(error).__name__}: {error}"
    return ""
