"""What drivers say of themselves while they play."""

from datetime import timedelta

from django.db import models
from django.db.models.functions import Now

from rollouts.models import DriverLoad, Run

_FORGOTTEN_AFTER_S = 60.0


def report(
    run: Run,
    *,
    holder: str,
    sessions: int,
    queued: int,
    asking: int,
    scoring: int,
    tokens: int,
    is_draining: bool = False,
) -> None:
    """Overwrite what a driver said before; forget those that said nothing for a minute."""
    DriverLoad.objects.bulk_create(
        [
            DriverLoad(
                run=run,
                holder=holder,
                reported_at=Now(),
                sessions=sessions,
                queued=queued,
                asking=asking,
                scoring=scoring,
                tokens=tokens,
                is_draining=is_draining,
            )
        ],
        update_conflicts=True,
        unique_fields=["run", "holder"],
        update_fields=["reported_at", "sessions", "queued", "asking", "scoring", "tokens", "is_draining"],
    )
    silent = Now() - models.Value(timedelta(seconds=_FORGOTTEN_AFTER_S))
    DriverLoad.objects.filter(run=run, reported_at__lt=silent).delete()


def forget(run: Run, *, holder: str) -> None:
    """A driver has ended."""
    DriverLoad.objects.filter(run=run, holder=holder).delete()
