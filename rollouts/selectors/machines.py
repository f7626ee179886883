"""What of somebody's projects runs where, and how it is: replicas, drivers, GPUs, machines. From rows alone.

Of what other projects run it is told only how much of a machine it has, where something of one's own is on that too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Count, Exists, Max, Min, OuterRef, QuerySet, Subquery
from django.utils import timezone

from rollouts.models import (
    Batch,
    DriverLoad,
    KeptPool,
    Lease,
    Placement,
    PlacementKind,
    PolicyVersion,
    Replica,
    ReplicaKind,
    ReplicaLoad,
    Run,
    RunKind,
    WorkerJob,
)
from rollouts.selectors import runs
from rollouts.selectors.environments import FRESH_S
from rollouts.states import REPLICA_ALIVE, RUN_ACTIVE, ReplicaState

QUIET_REPLICA_S = 30.0
"""After which a replica whose heart does not beat is called silent; after a minute it is replaced."""
HEARD_S = 90.0
"""A trainer that waits for a batch goes on asking, as is noted each half minute. One that is silent for so long loads
its model, or saves a checkpoint."""
_PAYLOAD = ("run__config", "run__config_origins")


@dataclass(frozen=True)
class ReplicaLine:
    """One replica that has a process, or waits for a node to have one."""

    replica: Replica
    load: ReplicaLoad | None
    idle_since: datetime | None
    """Of a server, since when nobody asked it for anything; of a trainer, since when it waits for a batch."""
    is_idle: bool
    """Whether that is longer than it may be without an alarm."""
    is_silent: bool

    @property
    def heartbeat_at(self) -> datetime | None:
        return None if self.load is None else self.load.heartbeat_at

    @property
    def left_s(self) -> float | None:
        """Until the time of its job is over; None where no end is set."""
        due_at = self.replica.due_at
        return None if due_at is None else max(0.0, (due_at - timezone.now()).total_seconds())


@dataclass(frozen=True)
class DriverLine:
    """What one driver does for one run."""

    run: Run
    holder: str
    leases: int
    load: DriverLoad | None
    """None: it has leases and says nothing, as those outside and those that have died."""
    expires_at: datetime | None
    """When the first of its leases does."""
    is_silent: bool


@dataclass
class Gpus:
    """Of one run."""

    run: Run
    number: int = 0
    hosts: list[str] = field(default_factory=list)
    replicas: int = 0

    def add(self, number: int, host: str) -> None:
        self.number += number
        if host and host not in self.hosts:
            self.hosts.append(host)


@dataclass
class Machine:
    """One that something of ours is on."""

    host: str
    gpus: list[tuple[str, Run | None]] = field(default_factory=list)
    """The GPUs that are promised, by their names, and to which run; None: to one of another project."""
    cores: int = 0
    """Those that are promised to runs of any project."""
    memory_gib: int = 0
    """Likewise."""
    replicas: list[Replica] = field(default_factory=list)
    drivers: int = 0
    others: int = 0
    """Replicas of other projects."""

    def promise(self, kind: str, unit: str, run: Run | None) -> None:
        """Add what is promised."""
        if kind == PlacementKind.GPU:
            self.gpus.append((unit, run))
        elif kind == PlacementKind.CORE:
            self.cores += 1
        else:
            self.memory_gib += 1


@dataclass(frozen=True)
class PoolLine:
    """Workers that are jobs: those of a pool, or those that somebody started by hand. They play for all projects."""

    pool: KeptPool | None
    jobs: list[WorkerJob] = field(default_factory=list)

    @property
    def running(self) -> int:
        return sum(job.state == "running" for job in self.jobs)


@dataclass(frozen=True)
class Fleet:
    """All of it."""

    replicas: list[ReplicaLine]
    drivers: list[DriverLine]
    gpus: list[Gpus]
    machines: list[Machine]
    pools: list[PoolLine]

    @property
    def alarms(self) -> int:
        of_replicas = sum(each.is_idle + each.is_silent for each in self.replicas)
        of_pools = sum(bool(each.pool and each.pool.complaint) for each in self.pools)
        return of_replicas + of_pools + sum(each.is_silent for each in self.drivers)


def fleet(user: User | AnonymousUser, *, idle_s: float) -> Fleet:
    """What the user may see; `idle_s`: for how long a replica may be idle without an alarm. Ten queries at most."""
    projects = list(runs.projects(user).values_list("pk", flat=True))
    replicas = _lines(Replica.objects.filter(run__project__in=projects), idle_s)
    drivers = _drivers(projects)
    placements = list(
        Placement.objects.filter(released_at=None, run__project__in=projects)
        .select_related("run")
        .defer(*_PAYLOAD)
        .order_by("host", "id")
    )
    rows = [each.replica for each in replicas]
    machines = _machines(rows, drivers, placements)
    _add_others(machines, projects)
    by_name = sorted(machines.values(), key=lambda each: each.host)
    return Fleet(replicas, drivers, _gpus(rows, placements), by_name, _pools(tells_why=user.is_superuser))


def idle_since(run: Run) -> tuple[int, datetime] | None:
    """How many replicas of a run have begun and not ended, and since when none of them has had anything to do; None
    where one has, or there is none. A version that was published is something to do."""
    begun = _lines(Replica.objects.filter(run=run, begun_at__isnull=False), 0.0)
    since = [line.idle_since for line in begun if line.idle_since is not None]
    if not begun or len(since) < len(begun):
        return None
    published_at = PolicyVersion.objects.filter(run=run).aggregate(last=Max("published_at"))["last"]
    return len(begun), max(filter(None, [*since, published_at]))


def _lines(replicas: QuerySet[Replica], idle_s: float) -> list[ReplicaLine]:
    batches = Batch.objects.filter(run=OuterRef("run"))
    trained_at = batches.filter(trained_at__isnull=False).order_by("-step").values("trained_at")[:1]
    under_way = batches.filter(step__gte=OuterRef("run__next_step"), trained_at=None)
    found = (
        replicas.filter(state__in=REPLICA_ALIVE)
        .select_related("run", "load")
        .defer(*_PAYLOAD)
        .annotate(
            trained_at=Subquery(trained_at),
            is_stepping=Exists(under_way),
        )
        .order_by("-run_id", "kind", "policy", "slot")
    )
    now = timezone.now()
    return [_line(replica, now, timedelta(seconds=idle_s)) for replica in found]


def _line(replica: Replica, now: datetime, longest: timedelta) -> ReplicaLine:
    load = getattr(replica, "load", None)
    since = None
    if replica.state == ReplicaState.READY:
        since = _waits_since(replica, now) if replica.kind == ReplicaKind.TRAINER else load and load.idle_since
    quiet = timedelta(seconds=QUIET_REPLICA_S)
    return ReplicaLine(
        replica,
        load,
        idle_since=since,
        is_idle=since is not None and now - since > longest,
        is_silent=bool(load and load.heartbeat_at and now - load.heartbeat_at > quiet),
    )


def _waits_since(trainer: Replica, now: datetime) -> datetime | None:
    """Since when a trainer has been waiting for a batch; None where it is not."""
    if now - (trainer.answered_at or trainer.state_at) > timedelta(seconds=HEARD_S):
        return None
    if trainer.run.kind != RunKind.RL or trainer.run.trainer_finished_at or trainer.is_stepping:  # type: ignore[attr-defined]
        return None
    trained_at: datetime | None = trainer.trained_at  # type: ignore[attr-defined]
    return max(filter(None, (trained_at, trainer.state_at)))


def _drivers(projects: Sequence[int]) -> list[DriverLine]:
    of_runs = {"run__project__in": projects, "run__state__in": RUN_ACTIVE}
    loads = {
        (load.run_id, load.holder): load
        for load in DriverLoad.objects.filter(**of_runs).select_related("run").defer(*_PAYLOAD)
    }
    held = {
        (run, holder): (number, expires_at)
        for run, holder, number, expires_at in Lease.objects.filter(**of_runs)
        .values_list("run", "holder")
        .annotate(Count("pk"), Min("expires_at"))
        .order_by()
    }
    known = {load.run_id: load.run for load in loads.values()}
    missing = {run for run, _ in held} - known.keys()
    if missing:
        known |= Run.objects.defer("config", "config_origins").in_bulk(missing)
    late = timezone.now() - timedelta(seconds=FRESH_S)
    lines = []
    for key in loads.keys() | held.keys():
        load = loads.get(key)
        number, expires_at = held.get(key, (0, None))
        is_silent = load is not None and load.reported_at < late
        lines.append(DriverLine(known[key[0]], key[1], number, load, expires_at, is_silent))
    return sorted(lines, key=lambda line: (line.holder, -line.run.pk))


def _pools(*, tells_why: bool) -> list[PoolLine]:
    """Why a pool is not kept may be said with paths and SLURM's own words, which are an administrator's."""
    lines = {pool.name: PoolLine(pool) for pool in KeptPool.objects.order_by("name")}
    for line in lines.values():
        if line.pool and line.pool.complaint and not tells_why:
            line.pool.complaint = "it is not kept as it should be; administrators see why"
    for job in WorkerJob.objects.order_by("pool", "number"):
        # A pool that is in the file no more has workers that have not ended yet.
        lines.setdefault(job.pool, PoolLine(KeptPool(name=job.pool, minimum=0, maximum=0) if job.pool else None))
        lines[job.pool].jobs.append(job)
    return list(lines.values())


def _gpus(replicas: Iterable[Replica], placements: Iterable[Placement]) -> list[Gpus]:
    found: dict[int, Gpus] = {}
    for placement in placements:
        if placement.kind == PlacementKind.GPU:
            found.setdefault(placement.run_id, Gpus(placement.run)).add(1, placement.host)
    for replica in replicas:
        of = found.setdefault(replica.run_id, Gpus(replica.run))
        of.replicas += 1
        # Those of this machine are promised to the run, not to its replicas. A job that waits has none.
        if replica.launcher != "local" and replica.begun_at is not None and replica.gpus:
            of.add(replica.gpus, replica.host)
    return sorted(found.values(), key=lambda each: (-each.number, -each.run.pk))


def _machines(
    replicas: Iterable[Replica], drivers: Iterable[DriverLine], placements: Iterable[Placement]
) -> dict[str, Machine]:
    found: dict[str, Machine] = {}
    for placement in placements:
        found.setdefault(placement.host, Machine(placement.host)).promise(placement.kind, placement.unit, placement.run)
    for replica in replicas:
        if replica.host:
            found.setdefault(replica.host, Machine(replica.host)).replicas.append(replica)
    for holder in {driver.holder for driver in drivers if driver.load is not None}:
        host = holder.rpartition(":")[0]
        found.setdefault(host, Machine(host)).drivers += 1
    return found


def _add_others(machines: dict[str, Machine], projects: Sequence[int]) -> None:
    """Add how much of these machines other projects have: no more of it is read."""
    here = list(machines)
    promised = Placement.objects.filter(host__in=here, released_at=None).exclude(run__project__in=projects)
    for host, kind, unit in promised.order_by("host", "id").values_list("host", "kind", "unit"):
        machines[host].promise(kind, unit, None)
    alive = Replica.objects.filter(host__in=here, state__in=REPLICA_ALIVE).exclude(run__project__in=projects)
    for host, number in alive.order_by().values_list("host").annotate(Count("pk")):
        machines[host].others = number
