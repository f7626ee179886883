"""Reads that serve exactly one page each: the list of runs, the overview of a run, and one step."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Avg, Count, F, Max, Prefetch, Q, QuerySet
from django.utils import timezone

from rollouts.errors import NotFound
from rollouts.models import (
    COUNTED_KINDS,
    Attempt,
    Batch,
    Checkpoint,
    EnvironmentClient,
    Evaluation,
    Event,
    MetricPoint,
    Placement,
    PlacementKind,
    PolicyVersion,
    Replica,
    Rollout,
    Run,
    ScoredGroup,
    Trial,
)
from rollouts.selectors import groups, metrics, runs
from rollouts.states import REPLICA_ALIVE, RUN_ACTIVE, EvaluationState, RunState

RECENT_STEPS = 20
"""How many of the newest steps the speed of a run is measured over."""
_FAR_S = 10 * 365 * 86_400  # a run may be meant to go on for ever, beyond any date that there is

STATE_FILTERS: dict[str, frozenset[str]] = {
    "active": frozenset(map(str, RUN_ACTIVE)),
    "finished": frozenset({str(RunState.FINISHED)}),
    "stopped": frozenset({str(RunState.STOPPED)}),
    "failed": frozenset({str(RunState.FAILED)}),
}


@dataclass(frozen=True)
class Progress:
    """How far a run is, and when it will be done at its present speed."""

    step: int
    max_steps: int
    step_s: float | None = None
    """Seconds per step, over the newest steps; None before the first."""
    left_s: float | None = None
    """None when it is over or not yet known."""

    @property
    def share(self) -> float:
        return self.step / self.max_steps

    @property
    def ends_at(self) -> datetime | None:
        return None if self.left_s is None or self.left_s > _FAR_S else timezone.now() + timedelta(seconds=self.left_s)


@dataclass(frozen=True)
class RunRow:
    """One line of the list."""

    run: Run
    environments: list[str]
    progress: Progress
    curve: list[float]
    """Shape of the mean reward."""

    @property
    def model(self) -> str:
        return self.run.model.name if self.run.model else str(self.run.config.get("model", {}).get("path", ""))


@dataclass(frozen=True)
class RunPage:
    """Rows newest first, how many runs each filter has, and where older ones begin."""

    rows: list[RunRow]
    counts: dict[str, int]
    older: int | None


def list_runs(
    user: User | AnonymousUser, *, text: str = "", state: str = "", before: int | None = None, limit: int = 50
) -> RunPage:
    """Runs the user may see, filtered. Five queries whatever the limit."""
    matching = _matching(runs.for_user(user), text)
    counts = _counts(matching)
    if state in STATE_FILTERS:
        matching = matching.filter(state__in=STATE_FILTERS[state])
    if before is not None:
        matching = matching.filter(id__lt=before)
    found = list(
        matching.select_related("project", "created_by", "model")
        .prefetch_related("environments")
        .order_by("-id")[: limit + 1]
    )
    page, older = found[:limit], found[limit - 1].pk if len(found) > limit else None
    speeds = _speeds(page)
    curves = metrics.sparklines([run.pk for run in page])
    rows = [
        RunRow(
            run=run,
            environments=[environment.name for environment in run.environments.all()],
            progress=_progress(run, speeds.get(run.pk)),
            curve=curves.get(run.pk, []),
        )
        for run in page
    ]
    return RunPage(rows, counts, older)


def progress(run: Run) -> Progress:
    """How far the run is. One query."""
    return _progress(run, _speeds([run]).get(run.pk))


def _matching(queryset: QuerySet[Run], text: str) -> QuerySet[Run]:
    for word in text.split():
        queryset = queryset.filter(
            Q(name__icontains=word)
            | Q(key__istartswith=word)
            | Q(kind=word.lower())
            | Q(config__model__path__icontains=word)
            | Q(model__name__icontains=word)
            | Q(created_by__username__icontains=word)
            | Q(pk__in=Run.objects.filter(environments__name__icontains=word).values("pk"))
        )
    return queryset


def _counts(queryset: QuerySet[Run]) -> dict[str, int]:
    by_state = dict(queryset.order_by().values_list("state").annotate(Count("id")))
    counts = {name: sum(by_state.get(state, 0) for state in states) for name, states in STATE_FILTERS.items()}
    return {"": sum(by_state.values()), **counts}


def _speeds(page: Iterable[Run]) -> dict[int, float]:
    """Run id -> mean seconds per step over the newest steps."""
    recent = MetricPoint.objects.filter(
        run__in=[run.pk for run in page], key="time/step", step__gte=F("run__next_step") - RECENT_STEPS
    )
    return dict(recent.order_by().values_list("run").annotate(Avg("value")))


def _progress(run: Run, step_s: float | None) -> Progress:
    moving = run.state in {RunState.RUNNING, RunState.STARTING} and step_s is not None
    left_s = (run.max_steps - run.next_step) * step_s if moving and step_s is not None else None
    return Progress(run.next_step, run.max_steps, step_s, left_s)


@dataclass(frozen=True)
class EvaluationLine:
    """One environment's evaluations: the first, the last, and the one being played."""

    environment: str
    first: Evaluation | None = None
    last: Evaluation | None = None
    playing: Evaluation | None = None

    @property
    def change(self) -> float | None:
        if self.first is None or self.last is None or self.first == self.last:
            return None
        if self.first.reward_mean is None or self.last.reward_mean is None:
            return None
        return self.last.reward_mean - self.first.reward_mean


def list_evaluations(run: Run) -> list[EvaluationLine]:
    """Before, after and now, per environment. One query."""
    lines: dict[str, list[Evaluation]] = {}
    for evaluation in Evaluation.objects.filter(run=run).select_related("environment").order_by("version"):
        lines.setdefault(evaluation.environment.name, []).append(evaluation)
    return [_evaluation_line(name, rows) for name, rows in sorted(lines.items())]


def _evaluation_line(name: str, rows: list[Evaluation]) -> EvaluationLine:
    scored = [row for row in rows if row.reward_mean is not None]
    # What ended before its last problem is of other problems: shown where there is nothing else, and not compared.
    done = [row for row in scored if row.state == EvaluationState.DONE] or scored[-1:]
    playing = [row for row in rows if row.state == EvaluationState.PLAYING]
    first, last = (done[0], done[-1]) if done else (None, None)
    return EvaluationLine(name, first, last, playing[-1] if playing else None)


def list_groups(
    run: Run, *, limit: int, before: int | None = None, state: str = "", purpose: str = ""
) -> QuerySet[ScoredGroup]:
    """Settled groups with their rollouts, in the order they arrived, newest first; `before` is the id of a group."""
    found = ScoredGroup.objects.filter(run=run, settled_at__isnull=False)
    if state:
        found = found.filter(state=state)
    if purpose:
        found = found.filter(purpose=purpose)
    if before is not None:
        # Of the run's: it may have left the state since.
        last = ScoredGroup.objects.filter(run=run, pk=before).values_list("settled_at", flat=True).first()
        if last is not None:
            found = found.filter(Q(settled_at__lt=last) | Q(settled_at=last, id__lt=before))
    return groups.with_rollouts(found).order_by("-settled_at", "-id")[:limit]


def list_replicas(run: Run, *, ended: int = 3) -> list[Replica]:
    """The replicas that have a process, then the newest of those that ended. Two queries."""
    alive = Replica.objects.filter(run=run, state__in=REPLICA_ALIVE).order_by("kind", "policy", "slot")
    over = Replica.objects.filter(run=run).exclude(state__in=REPLICA_ALIVE).order_by("-ended_at")[:ended]
    return [*alive, *over]


def list_placements(run: Run) -> dict[str, list[Placement]]:
    """The GPUs, cores and GiB of memory that the run has now, by kind."""
    found = Placement.objects.filter(run=run, released_at=None).order_by("id")
    return {kind: [each for each in found if each.kind == kind] for kind in PlacementKind.values}


@dataclass(frozen=True)
class EventLine:
    """An event, and what it is about in words: `policy version 41`, `inference-0-7`."""

    event: Event
    about: str


def list_events(run: Run, *, limit: int = 12, before: int | None = None) -> list[EventLine]:
    """Newest events of everything but single groups and batches. One query, and one per kind of object."""
    events = Event.objects.filter(run=run).exclude(object_kind__in=COUNTED_KINDS)
    if before is not None:
        events = events.filter(id__lt=before)
    found = list(events.order_by("-id")[:limit])
    names = _names(found)
    return [
        EventLine(
            event, names.get((event.object_kind, event.object_id), _UNNAMED.get(event.object_kind, event.object_kind))
        )
        for event in found
    ]


_NAMED: dict[str, type[PolicyVersion | Checkpoint | Evaluation | Replica | Attempt | EnvironmentClient | Trial]] = {
    "policyversion": PolicyVersion,
    "checkpoint": Checkpoint,
    "evaluation": Evaluation,
    "replica": Replica,
    "attempt": Attempt,
    "environmentclient": EnvironmentClient,
    "trial": Trial,
}

_PREFIXES = {"policyversion": "policy ", "environmentclient": "environment "}
_UNNAMED = {"policyversion": "policy version", "environmentclient": "environment"}
"""For events whose object is gone."""


def _names(events: Iterable[Event]) -> dict[tuple[str, int], str]:
    ids: dict[str, set[int]] = {}
    for event in events:
        ids.setdefault(event.object_kind, set()).add(event.object_id)
    names = {("run", pk): "run" for pk in ids.get("run", ())}
    for kind, model in _NAMED.items():
        if kind in ids:
            prefix = _PREFIXES.get(kind, "")
            names |= {(kind, row.pk): f"{prefix}{row}" for row in model._default_manager.filter(pk__in=ids[kind])}
    return names


def seq(run: Run) -> int:
    """Id of the run's newest event: what a page was as of."""
    return Event.objects.filter(run=run).aggregate(seq=Max("id"))["seq"] or 0


@dataclass(frozen=True)
class Step:
    """The batch of one optimizer step, its members in order, and what was measured."""

    batch: Batch
    members: list["Member"]
    values: dict[str, float] = field(default_factory=dict)
    newest: int = 0
    """The newest step that has a batch."""


@dataclass(frozen=True)
class Member:
    """A group in a batch."""

    position: int
    replay: int
    key: str
    run_key: str
    """The run whose group it is: of a replay another one."""
    environment: str
    problem_key: str
    rewards: list[float | None]
    advantages: list[float | None]
    reward_mean: float | None
    min_policy_version: int
    max_policy_version: int
    token_count: int
    lag: int | None
    """Steps between the batch and the oldest policy version in the group; None in a replay, whose are another run's.

    Not below 0: a group from outside may name the version that the step makes."""


def get_step(run: Run, step: int) -> Step:
    """The batch of a step. Raises NotFound when none was formed yet. Five queries."""
    batch = Batch.objects.filter(run=run, step=step).first()
    if batch is None:
        raise NotFound(f"Run {run} has no batch for step {step} yet.")
    items = batch.items.select_related("group__environment", "group__run").order_by("position")
    rewards = Prefetch("group__rollouts", Rollout.objects.only("group", "index", "reward"))  # not what was said
    members = [
        Member(
            position=item.position,
            replay=item.replay,
            key=item.group.key,
            run_key=item.group.run.key,
            environment=item.group.environment.name,
            problem_key=item.group.problem_key,
            rewards=[each.counting_reward for each in sorted(item.group.rollouts.all(), key=lambda each: each.index)],
            advantages=list(item.advantages),
            reward_mean=item.group.reward_mean,
            min_policy_version=item.group.min_policy_version or 0,
            max_policy_version=item.group.max_policy_version or 0,
            token_count=item.group.token_count,
            lag=max(0, step - (item.group.min_policy_version or 0)) if batch.replay_of_id is None else None,
        )
        for item in items.prefetch_related(rewards)
    ]
    values = dict(MetricPoint.objects.filter(run=run, step=step).order_by("key").values_list("key", "value"))
    newest = Batch.objects.filter(run=run).aggregate(step=Max("step"))["step"] or 0
    return Step(batch, members, values, newest)


def open_attempt(run: Run) -> Attempt | None:
    """The registration of a trainer from outside that is in force."""
    return Attempt.objects.filter(run=run, closed_at__isnull=True).first()


def list_clients(run: Run) -> list[EnvironmentClient]:
    """Environments that take part in the open attempt over the Atropos-compatible API."""
    clients = EnvironmentClient.objects.filter(attempt__run=run, attempt__closed_at__isnull=True)
    return list(clients.select_related("environment").order_by("index"))
