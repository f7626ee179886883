"""What the next batch of a run would be now, or why there is none. Reads few rows however long the queue is."""

from dataclasses import dataclass
from statistics import fmean

from django.db import connection
from django.db.models import F, QuerySet

from rollouts.formation import Candidate, Chosen, Demand, MixtureShare, Stuck, Waiting, choose
from rollouts.models import Attempt, Batch, Purpose, Replay, Run, RunEnvironment, RunKind, ScoredGroup
from rollouts.selectors.clients import minimums
from rollouts.sql import load
from rollouts.states import GroupState

FIRST_LOOK = 512
"""Rollouts of each environment and size that are read first for a batch measured in tokens; then twice as many."""
RECENT = 64
"""Groups of which the mean says how many tokens the next one will have."""


@dataclass(frozen=True)
class Measure:
    """How much a batch of a run holds: rollouts, or tokens when the config has `batch.token_batch_size`."""

    batch: int
    groups: dict[str, int]
    """Of one group that we play of each environment: exactly so many rollouts, or as many tokens as the newest ones
    had."""
    smallest: int
    """Of these."""
    is_tokens: bool
    beyond: int
    """What is begun beyond the batches that may be ahead, in the same unit: `batch.oversampling`."""

    @property
    def groups_per_batch(self) -> int:
        """At least one, and no more are expected to fit."""
        return max(1, self.batch // self.smallest)


def measure_of(run: Run) -> Measure:
    """One query for a run whose batches are measured in tokens, none for others."""
    config = run.parsed
    batch, rollouts = config.batch, config.group_rollouts
    if batch.token_batch_size is None:
        beyond = _beyond(batch.batch_size, batch.oversampling)
        return Measure(batch.batch_size, rollouts, config.smallest_group, is_tokens=False, beyond=beyond)
    scored = ScoredGroup.objects.filter(run=run, purpose=Purpose.TRAIN, reward_mean__isnull=False)
    settled = scored.filter(settled_at__isnull=False).order_by("-settled_at")
    recent = list(settled.values_list("token_count", flat=True)[:RECENT])
    # Before the first there is only a bound. It errs to the safe side, until that one is settled.
    tokens = fmean(recent) if recent else max(rollouts.values(), default=1) * config.inference.max_model_len
    each = max(1, round(tokens))
    beyond = _beyond(batch.token_batch_size, batch.oversampling)
    return Measure(batch.token_batch_size, dict.fromkeys(rollouts, each), each, is_tokens=True, beyond=beyond)


def _beyond(batch: int, oversampling: float) -> int:
    return round((oversampling - 1) * batch)


@dataclass(frozen=True)
class Outlook:
    """What asking for the batch of a step would do, as it looks without a lock."""

    step: int
    choice: Chosen | Waiting | Stuck | None
    """None: the batch repeats one of another run."""
    stale: list[int]
    """Ready groups that are too old for the step."""

    @property
    def is_worth_forming(self) -> bool:
        """Whether there is a batch, or something to drop. A trainer that waits asks many times a second."""
        return bool(self.stale) or not isinstance(self.choice, Waiting | Stuck)


def demand_of(run: Run) -> Demand:
    """What the run's config asks of a batch."""
    batch = run.parsed.batch
    return Demand(rollouts=batch.batch_size, tokens=batch.token_batch_size)


def demand_of_attempt(attempt: Attempt) -> Demand:
    """What a trainer registered for: exactly so many rollouts, and the minimum shares of its environments."""
    return Demand(rollouts=attempt.batch_size, exact=True, minimums=minimums(attempt))


def next_step(run: Run) -> int:
    """The step of the next batch to be formed. Steps are contiguous, so the newest batch tells."""
    newest = Batch.objects.filter(run=run).order_by("-step").values_list("step", flat=True).first()
    return 0 if newest is None else newest + 1


def look_for(attempt: Attempt, run: Run) -> Outlook:
    """What would be formed now as the next batch of an open attempt."""
    return look(run, next_step(run), demand_of_attempt(attempt))


def look(run: Run, step: int, demand: Demand | None = None) -> Outlook:
    """What would be formed as the batch of ``step`` now, and which groups would be dropped.

    Without ``demand`` the batch is what the run's config asks for.
    """
    oldest = step - run.parsed.algorithm.max_off_policy_steps
    old = ScoredGroup.objects.filter(run=run, state=GroupState.READY, min_policy_version__lt=oldest)
    stale = list(old.values_list("pk", flat=True)) if oldest > 0 else []
    choice = None if open_replays(run).exists() else preview(run, step, demand or demand_of(run))
    return Outlook(step, choice, stale)


def open_replays(run: Run) -> QuerySet[Replay]:
    """Replays ordered of which the run has not taken every step, the first to be taken first."""
    return Replay.objects.filter(run=run, taken__lt=F("last_step") - F("first_step") + 1).order_by("id")


def explain(run: Run) -> Waiting | Stuck | None:
    """What keeps the next batch from being formed; None when it can be."""
    attempt = None
    if run.kind == RunKind.EXTERNAL:
        attempt = Attempt.objects.filter(run=run, closed_at__isnull=True).first()
    demand = demand_of(run) if attempt is None else demand_of_attempt(attempt)
    found = preview(run, next_step(run), demand)
    if isinstance(found, Waiting) and (held := held_groups(run)):
        return Waiting(f"{found.reason}; {held} group{'s wait' if held > 1 else ' waits'} for a person's word")
    return None if isinstance(found, Chosen) else found


def held_groups(run: Run) -> int:
    """Groups that wait for people (`environments[].review`). No query where people are in no loop."""
    if all(ref.review is None for ref in run.parsed.environments):
        return 0
    return ScoredGroup.objects.filter(run=run, state=GroupState.HELD).count()


def preview(run: Run, step: int, demand: Demand) -> Chosen | Waiting | Stuck:
    """What would become of the batch of ``step`` now, and why not if it cannot be formed. Reads few rows, always."""
    if demand.tokens is None:
        return _choose(run, _candidates(run, step, demand.rollouts), demand)
    seen, rollouts = -1, FIRST_LOOK
    while True:
        candidates = _candidates(run, step, rollouts)
        chosen = _choose(run, candidates, demand)
        if isinstance(chosen, Chosen) or len(candidates) == seen:
            return chosen
        seen, rollouts = len(candidates), rollouts * 2


def _choose(run: Run, candidates: list[Candidate], demand: Demand) -> Chosen | Waiting | Stuck:
    # The environments are read after the groups: one that was just added comes with its first group.
    environments = RunEnvironment.objects.filter(run=run)
    shares = {row.pk: MixtureShare(row.name, row.weight, row.virtual_time) for row in environments}
    return choose(candidates, demand, shares, run.mixture_clock)


def _candidates(run: Run, step: int, rollouts: int) -> list[Candidate]:
    config = run.parsed
    window = config.batch.window
    with connection.cursor() as cursor:
        cursor.execute(
            load("candidates"),
            {
                "run_id": run.pk,
                "rollouts": rollouts,
                "window": measure_of(run).groups_per_batch if window is None else window,
                "oldest_version": step - config.algorithm.max_off_policy_steps,
            },
        )
        return [Candidate(*row) for row in cursor.fetchall()]
