"""What the mixture of a run remembers from one batch to the next, and the weights that hold until then.

Every environment has two virtual times: that of its rollouts in batches (`rollouts.formation`) and that of its turns to
hand out a problem (`services.groups.leases`), both in rollouts over its weight. Under a small weight one turn is a
long time. So where a weight changes, what the environment is ahead of the clock or behind it is kept in rollouts, not
in time: else it would wait that long, or have all turns until it has caught up, under a weight that says otherwise.
"""

from math import fsum

from django.db import connection
from django.db.models import QuerySet

from rollouts.formation import Chosen
from rollouts.models import Run, RunEnvironment
from rollouts.sql import load


def advance(run: Run, chosen: Chosen) -> None:
    """Count what was chosen for a batch. The caller has the run's row locked; locks in id order the environments that
    it took groups of, or all of them where `reweigh` will set weights: claims take them in that order too."""
    if any(ref.schedule for ref in run.parsed.environments):
        list(_locked(run))
    with connection.cursor() as cursor:
        cursor.execute(
            load("advance_mixture"),
            {
                "run_id": run.pk,
                "clock": chosen.clock,
                "environment_ids": list(chosen.virtual_times),
                "virtual_times": list(chosen.virtual_times.values()),
            },
        )


def reweigh(run: Run, *, step: int, clock: float) -> None:
    """Set the weights of ``step`` where the config has schedules; nothing happens where it has none.

    ``clock`` is the mixture's, after the batch of the step before. The caller has the run's row locked; locks the
    environments of the config in id order.
    """
    scheduled = {ref.run_name: ref.weight_at(step) for ref in run.parsed.environments if ref.schedule}
    if not scheduled:
        return
    environments = list(_locked(run))
    # Rollouts in all over weights in all: where everybody would be if turns could be divided.
    turns = fsum(row.turn_time * row.weight for row in environments) / fsum(row.weight for row in environments)
    for row in environments:
        before, row.weight = row.weight, scheduled.get(row.name, row.weight)
        if row.weight != before:
            row.turn_time = rescaled(row.turn_time, turns, before, row.weight)
            row.virtual_time = rescaled(row.virtual_time, clock, before, row.weight)
    RunEnvironment.objects.bulk_update(environments, ["weight", "turn_time", "virtual_time"])


def rescaled(time: float, clock: float, before: float, after: float) -> float:
    """A virtual time under another weight: as many turns or rollouts from the clock as it was under the one before."""
    return clock + (time - clock) * before / after


def _locked(run: Run) -> QuerySet[RunEnvironment]:
    rows = RunEnvironment.objects.select_for_update(no_key=True).filter(run=run, name__in=run.environment_names)
    return rows.order_by("id")
