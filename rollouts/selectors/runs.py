"""Reads of runs: who may see which, how one is doing, and where its groups went."""

from dataclasses import dataclass, replace
from datetime import timedelta

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Now
from django.utils import timezone

from rollouts.errors import Forbidden, NotFound
from rollouts.formation import Stuck
from rollouts.models import (
    Address,
    Evaluation,
    Event,
    Membership,
    MetricPoint,
    Project,
    Replica,
    ReplicaKind,
    Role,
    Run,
    RunKind,
    ScoredGroup,
)
from rollouts.reasons import WAITS, Reason, ReasonCode
from rollouts.selectors import next_batch
from rollouts.states import (
    GROUP_FLOW,
    REPLICA_ALIVE,
    RUN_ACTIVE,
    EvaluationState,
    GroupState,
    ReplicaState,
    RunState,
)

NO_RUN = "There is no run {key}, or you may not see it."
HEALTH_WINDOW = timedelta(seconds=60)
BOTTLENECK_SHARE = 0.25
"""From this share of waiting on, the health sentence names who waits for whom."""


@dataclass(frozen=True)
class Health:
    """One sentence on how a run is doing, and how worried to be: ``good``, ``busy``, ``bad`` or ``over``."""

    sentence: str
    level: str


@dataclass(frozen=True)
class LedgerLine:
    """How many training groups are in one state, of those dropped, for one reason."""

    state: str
    reason: Reason | None
    """That of one of the groups: all have its code and its heading, not its details."""
    groups: int
    rollouts: int

    @property
    def heading(self) -> str:
        """The reason without what differs from group to group; empty where groups are not dropped."""
        return self.reason.heading if self.reason else ""


def for_user(user: User | AnonymousUser, at_least: Role = Role.VIEWER) -> QuerySet[Run]:
    """The runs of projects in which the user has at least this role. Superusers have every role."""
    if not user.is_authenticated:
        return Run.objects.none()
    if user.is_superuser:
        return Run.objects.all()
    return Run.objects.filter(project__in=projects(user, at_least))


def that_play(user: User | AnonymousUser, environment: str, limit: int = 20) -> list[Run]:
    """The user's newest runs with an environment of this name, whatever it is called in the run. One query."""
    found = for_user(user).filter(config__environments__contains=[{"name": environment}])
    return list(found.select_related("created_by").order_by("-id")[:limit])


def projects(user: User | AnonymousUser, at_least: Role = Role.VIEWER) -> QuerySet[Project]:
    """The projects in which the user has at least this role."""
    if not user.is_authenticated:
        return Project.objects.none()
    if user.is_superuser:
        return Project.objects.all()
    roles = [role for role in Role if role.includes(at_least)]
    return Project.objects.filter(memberships__in=Membership.objects.filter(user=user, role__in=roles))


def get(user: User | AnonymousUser, key: str, at_least: Role = Role.VIEWER) -> Run:
    """The run with this key. Raises NotFound if the user may not see it, Forbidden if the role does not suffice."""
    run = with_relations(for_user(user)).filter(key=key).first()
    if run is None:
        raise NotFound(NO_RUN.format(key=key))
    if at_least is not Role.VIEWER and not for_user(user, at_least).filter(pk=run.pk).exists():
        raise Forbidden(f"This needs the role {at_least.value} in project {run.project}.")
    return run


def launcher_left(run: Run) -> bool:
    """Whether whoever launched it may not operate its project any more, in whose name its trainer speaks."""
    user = run.created_by
    if user is None:
        return False
    return not user.is_active or not projects(user, Role.OPERATOR).filter(pk=run.project_id).exists()


def address(run: Run) -> Address | None:
    """The address of the run's Atropos-compatible API, annotated with ``is_owned``: whether somebody answers for it.

    None for a supervised run. What `sql/atropos_caller.sql` asks, for people.
    """
    roles = [role for role in Role if role.includes(Role.OPERATOR)]
    may_operate = Membership.objects.filter(user=OuterRef("owner"), project=run.project_id, role__in=roles)
    is_owned = Q(owner__is_active=True) & (Q(owner__is_superuser=True) | Exists(may_operate))
    addresses = Address.objects.filter(run=run).select_related("owner")
    return addresses.annotate(is_owned=Case(When(is_owned, then=True), default=False)).first()


def with_relations(runs: QuerySet[Run]) -> QuerySet[Run]:
    """What is said of a run names its project, its model and who made it: fetched with it."""
    return runs.select_related("project", "created_by", "model")


def list_active() -> QuerySet[Run]:
    """Every run that some process must still do something for."""
    return Run.objects.filter(state__in=RUN_ACTIVE).order_by("id")


def ledger(run: Run) -> list[LedgerLine]:
    """Where every training group of the run is: counts by state and, for those dropped, by heading of the reason."""
    is_dropped = ~Q(state__in=GROUP_FLOW)
    rows = (
        ScoredGroup.objects.filter(run=run, purpose="train")
        .values(
            "state",
            code=Case(When(is_dropped, then=F("reason_code")), default=Value("")),
            params=Case(When(is_dropped, then=F("reason_params"))),
        )
        .annotate(groups=Count("id"), members=Sum("rollout_count"))
    )
    lines: dict[tuple[str, str, str], LedgerLine] = {}
    for row in rows:
        line = LedgerLine(
            row["state"],
            Reason.read(row["code"], row["params"]) if row["code"] else None,
            row["groups"],
            row["members"] or 0,
        )
        key = (line.state, row["code"], line.heading)
        if (same := lines.get(key)) is not None:
            line = replace(line, groups=line.groups + same.groups, rollouts=line.rollouts + same.rollouts)
        lines[key] = line
    order = {state: position for position, state in enumerate(GroupState.values)}
    return sorted(lines.values(), key=lambda line: (order[line.state], line.heading))


def health(run: Run) -> Health:
    """Say in one sentence who is waiting for whom, or what is missing."""
    if run.state == RunState.FAILED:
        return Health(f"Failed: {run.state_reason or 'no reason was recorded'}.", "bad")
    if run.state in {RunState.FINISHED, RunState.STOPPED}:
        detail = f" ({run.state_reason})" if run.state_reason else ""
        unit = "versions" if run.kind == RunKind.EVAL else "steps"
        return Health(
            f"{RunState(run.state).name.capitalize()} after {run.next_step} of {run.max_steps} {unit}{detail}.",
            "over",
        )
    if run.state == RunState.STOPPING:
        return Health("Stopping: its processes are being ended, at most 30 s.", "busy")
    if run.state == RunState.PENDING:
        return Health(_what_is_waited_for(run), "busy")
    if run.kind == RunKind.EVAL and run.state in {RunState.RUNNING, RunState.FINISHING}:
        return _of_evaluation(run)
    missing = _missing_replica(run)
    if missing:
        return Health(missing, "busy")
    if run.state == RunState.FINISHING:
        return Health(
            "All steps are trained; the last version is being published and evaluated.",
            "busy",
        )
    if run.kind == RunKind.EXTERNAL:
        return _of_external(run)
    return _bottleneck(run)


def _what_is_waited_for(run: Run) -> str:
    """Of a run that has not begun: what the reconciler noted last."""
    noted = Event.objects.filter(object_kind="run", object_id=run.pk, reason_code__in=WAITS).order_by("-id").first()
    if noted is None:
        return "Waiting for the reconciler to pick it up (every 5 s)."
    return f"Not begun yet: {noted.reason}."


def _of_evaluation(run: Run) -> Health:
    """What is being measured, and how far that is."""
    if missing := _missing_replica(run):
        return Health(missing, "busy")
    playing = Evaluation.objects.filter(run=run, state=EvaluationState.PLAYING).select_related("environment")
    parts = [f"{row.cursor} of {row.problems} problems of {row.environment} handed out" for row in playing]
    if not parts:
        return Health("The next version is being loaded.", "good")
    return Health(f"Measuring version {run.live_version}: {', '.join(parts)}.", "good")


def _of_external(run: Run) -> Health:
    """Who waits for whom when neither environments nor trainer are ours."""
    if run.state == RunState.STARTING:
        return Health("Waiting for a trainer: the page Connect says how one registers.", "busy")
    reason = next_batch.explain(run)
    if isinstance(reason, Stuck):
        return Health(f"Stuck: {reason.reason}", "bad")
    if reason is not None:
        return Health(f"Waiting for groups: {reason.reason}.", "busy")
    return Health(f"Step {run.next_step} can be fetched: the trainer has the next move.", "good")


def _missing_replica(run: Run) -> str:
    """A sentence about the replica that the run waits for; empty when all are ready."""
    slots = ("kind", "policy", "slot")
    newest = Replica.objects.filter(run=run).order_by(*slots, "-id").distinct(*slots)
    missing = Q(state__in=REPLICA_ALIVE) & ~Q(state=ReplicaState.READY) | Q(reason_code=ReasonCode.LAUNCHER_AWAY)
    found = Replica.objects.filter(missing, pk__in=newest.values("pk")).order_by("id")
    if not found:
        return ""
    replica = next((each for each in found if each.state in REPLICA_ALIVE), found[0])
    kind = "The inference server" if replica.kind == ReplicaKind.INFERENCE else "The trainer"
    of = f" of the policy {replica.policy}" if replica.policy else ""
    if replica.state not in REPLICA_ALIVE:
        return f"{kind}{of} could not be started yet, and is tried again: {replica.reason}."
    age = (timezone.now() - replica.state_at).total_seconds()
    doing = {
        ReplicaState.STARTING: "is starting",
        ReplicaState.SUSPECT: "does not answer",
        ReplicaState.STOPPING: "is being ended",
    }[ReplicaState(replica.state)]
    why = f": {replica.state_reason}" if replica.state_reason else ""
    return f"{kind}{of} {doing} (for {age:.0f} s{why})."


def _bottleneck(run: Run) -> Health:
    recent = MetricPoint.objects.filter(
        run=run,
        key__in=["time/wait_for_batch", "time/step", "time/wait_for_policy"],
        recorded_at__gt=Now() - HEALTH_WINDOW,
    )
    sums = dict(recent.values_list("key").annotate(total=Sum("value")))
    busy_s = sums.get("time/step", 0.0)
    if not busy_s:
        reason = next_batch.explain(run) if run.kind == RunKind.RL else None
        if isinstance(reason, Stuck):
            return Health(f"Stuck: {reason.reason}", "bad")
        why = "the trainer has all it needs" if reason is None else reason.reason
        return Health(f"No step was finished in the last minute; for step {run.next_step} {why}.", "busy")
    batch_share = min(1.0, sums.get("time/wait_for_batch", 0.0) / busy_s)
    policy_share = min(1.0, sums.get("time/wait_for_policy", 0.0) / busy_s)
    if run.kind == "rl" and max(batch_share, policy_share) >= BOTTLENECK_SHARE:
        if batch_share >= policy_share:
            return Health(
                f"Generation is the bottleneck: the trainer waited {batch_share:.0%} of the last minute for batches.",
                "good",
            )
        return Health(
            f"Training is the bottleneck: generation waited {policy_share:.0%} of the last minute for a newer policy.",
            "good",
        )
    return Health(
        f"Healthy: step {run.next_step} of {run.max_steps}, nobody waits for long.",
        "good",
    )
