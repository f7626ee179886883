"""Keep as many workers as jobs of SLURM as `cluster.toml` says, and as there is work for.

    minimum ── runs could begin more than is played ──▶ half as many more ──▶ maximum
       ▲                                                                         │
       └── nothing is to be played ──┴── all is played for a while: one fewer ◀──┘

A worker whose time is nearly over begins no group that it may not end; another comes before that, and it ends.

No row decides: the file says how many there are to be, SLURM how many there are, and what is seen of both is noted for
people. What is remembered here is since when they have been too few or enough, and who was told to end; that may be
lost.
"""

import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from rollouts.models import Evaluation, KeptPool, Lease, Run, RunKind, Trial, WorkerJob
from rollouts.services import worker_jobs
from rollouts.services.groups import next_groups
from rollouts.states import RUN_GENERATING, EvaluationState, TrialState
from workers.fleet.keys import mark_of_workers
from workers.given import NoWay, given
from workers.slurm import queue, templates, workers
from workers.slurm.queue import Job
from workers.slurm.states import words_for
from workers.slurm.templates import WorkerPool
from workers.tasks import may_take_s, wants_driver

log = logging.getLogger(__name__)

GROW_S = 15.0
"""For which runs could begin more than is played before there are more workers."""
SHRINK_S = 300.0
"""For which all was played, before there is one fewer. If that was needed, it comes back."""
REST_S = 60.0
"""For which nothing was to be played before all beyond the minimum end."""
MAX_FAILED = 3
"""Of a pool's jobs that SLURM remembers, which is for minutes: a worker that cannot begin is not started for ever."""
AHEAD_S = 60.0
"""For which a worker and the one that takes its place are both there."""
_NOT_YET = frozenset({"PENDING", "CONFIGURING", "POWER_UP_NODE"})
_NO_MORE = frozenset({"COMPLETING", "SUSPENDED", "STOPPED"})
"""Of jobs that have not ended: their workers play nothing, some for as long as a node hangs."""
_PAUSE_S = 30.0
"""After SLURM took no job, or the file was wrong, and where there is no pool."""
_FAILING = {
    "OUT_OF_MEMORY": "its workers run out of memory, so it waits: give them more memory_gib in cluster.toml",
    "FAILED": "its workers fail, so it waits: the newest file in logs/workers may say why",
}
"""By the state in which jobs end that are not simply replaced, what is said of the pool; the first counts."""
_TOO_SHORT = (
    "its workers have {hours:g} hours, and a group may take {takes:.2g} (the timeout_s of its environment), so they "
    "begin few or none: they need more hours in cluster.toml, or the environment a smaller timeout_s"
)


class Work(NamedTuple):
    """What there is to be played."""

    is_there: bool
    is_left: bool
    """Whether more could be begun than is played: drivers ask every second, so all are full, or there is none."""
    takes_s: float = 0.0
    """What a group of any run may take, of the run of which that is least: who has no longer begins nothing."""


class Lasting(NamedTuple):
    """Seconds for which something has been so; 0 where it is not."""

    left_s: float = 0.0
    played_s: float = 0.0
    """There was work, and none was left."""
    nothing_s: float = 0.0


def wanted(pool: WorkerPool, count: int, lasting: Lasting, *, is_growing: bool) -> int:
    """How many workers of a pool there should be, of which there are `count`. `is_growing`: some have not begun."""
    if lasting.left_s >= GROW_S and not is_growing:
        count += max(1, count // 2)
    elif lasting.nothing_s >= REST_S:
        count = pool.minimum
    elif lasting.played_s >= SHRINK_S:
        count -= 1
    return min(max(count, pool.minimum), pool.most)


def work() -> Work:
    """Of all runs whose groups we play."""
    runs = [run for run in Run.objects.filter(state__in=RUN_GENERATING) if wants_driver(run)]
    return Work(bool(runs), any(map(_is_left, runs)), min(map(may_take_s, runs), default=0.0))


def _is_left(run: Run) -> bool:
    """Whether a driver with room would find something: a group to begin or to take over, or a trial."""
    if run.live_version < 0:
        return False
    if run.kind == RunKind.RL and next_groups.capacity(run).capacity > 0:
        return True
    open_evaluations = Evaluation.objects.filter(run=run, state=EvaluationState.PLAYING, cursor__lt=F("problems"))
    expired = Lease.objects.filter(run=run, expires_at__lt=Now())
    trials = Trial.objects.filter(run=run, state=TrialState.WAITING)
    return any(found.exists() for found in (open_evaluations, expired, trials))


def ends_within(job: Job, seconds: float) -> bool:
    """Whether the time of a job that has begun is over so soon."""
    if job.state != "RUNNING" or job.due_at is None:
        return False
    return job.due_at - timezone.now() < timedelta(seconds=seconds)


def _is_told_of(job: Job) -> bool:
    """Those that have ended well, or were ended, are nothing to look at."""
    return not job.has_ended or job.state not in ("COMPLETED", "CANCELLED")


class WorkerPools:
    """All of them. Not thread-safe."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, float]] = {}
        """By pool, how it is with the work, and since when."""
        self._draining: set[str] = set()
        self._failing: dict[str, str] = {}
        """By pool whose workers fail, the words for it."""
        self._too_short: dict[str, str] = {}
        """By pool whose workers have too little time from the beginning, the words for it."""
        self._refused: dict[str, tuple[str, float]] = {}
        """By pool of which nothing could be started or ended, why, and until when it is left alone."""
        self._not_before = 0.0
        self._look_at = 0.0

    def keep(self) -> None:
        """Have jobs started and drained, and note what is seen of them. Logs and notes what keeps it from that."""
        now, pools = time.monotonic(), dict[str, WorkerPool]()
        if now < self._not_before:
            return
        try:
            pools = templates.worker_pools(settings.ROLLYARD_HOME)
            # Without pools there are at most those that somebody started by hand, with whom nothing is to be done.
            if pools or (now >= self._look_at and queue.is_installed()):
                self._look_at = now + _PAUSE_S
                jobs = workers.remembered(mark_of_workers())
                self._keep_all(pools, jobs, now)
                worker_jobs.note_jobs(self._seen(token, job) for token, job in jobs.items() if _is_told_of(job))
            self._note(pools)
        except (templates.TemplateError, NoWay, queue.SlurmAway, queue.SlurmRefused) as error:
            # Who has SLURM's clients and no pool need not have a SLURM.
            is_wanted = bool(pools) or isinstance(error, templates.TemplateError)
            log.log(logging.WARNING if is_wanted else logging.DEBUG, "pools of workers: %s", error)
            if pools:
                self._note(pools, str(error))
            else:
                worker_jobs.complain(str(error))
            self._not_before = now + _PAUSE_S

    def _keep_all(self, pools: Mapping[str, WorkerPool], jobs: Mapping[str, Job], now: float) -> None:
        self._draining &= {token for token, job in jobs.items() if not job.has_ended}
        for token in self._draining:
            try:
                workers.drain(token, jobs[token])  # again: one that was just beginning may not have heard
            except queue.SlurmRefused as error:
                log.info("pools of workers: %s", error)
        self._refused = {name: refused for name, refused in self._refused.items() if name in pools}
        found = work() if pools else Work(is_there=False, is_left=False)
        for name, pool in pools.items():
            of_pool = {token: job for token, job in jobs.items() if workers.pool_of(token) == name}
            lasting = self._lasting(name, found, now)
            if now < self._refused.get(name, ("", 0.0))[1]:
                continue
            try:
                self._keep(name, pool, of_pool, lasting, found.takes_s)
            except (templates.TemplateError, NoWay, queue.SlurmRefused) as error:  # of this pool, not of the others
                log.warning("pool %s: %s", name, error)
                self._refused[name] = str(error), now + _PAUSE_S
            else:
                self._refused.pop(name, None)

    def _note(self, pools: Mapping[str, WorkerPool], complaint: str = "") -> None:
        worker_jobs.note_pools(
            KeptPool(
                name=name,
                minimum=pool.minimum,
                maximum=pool.most,
                complaint=complaint or self._complaint(name),
            )
            for name, pool in pools.items()
        )

    def _complaint(self, name: str) -> str:
        if name in self._refused:
            return self._refused[name][0]
        return self._failing.get(name) or self._too_short.get(name, "")

    def _seen(self, token: str, job: Job) -> WorkerJob:
        return WorkerJob(
            token=token,
            pool=workers.pool_of(token),
            number=job.number,
            state=job.state.lower(),
            node=job.node,
            why=words_for(job) if job.state in ("PENDING", "CONFIGURING") else "",
            due_at=job.due_at,
            is_draining=token in self._draining,
        )

    def _late(self, name: str, pool: WorkerPool, jobs: Mapping[str, Job], takes_s: float) -> set[str]:
        """Those of the workers that begin nothing more, or nothing soon, since their time is nearly over; none where
        it would be so with every new one too."""
        self._too_short.pop(name, None)
        late = {token for token, job in jobs.items() if ends_within(job, takes_s + AHEAD_S)}
        hours = (pool.hours or templates.read(settings.ROLLYARD_HOME, pool.template).hours) if late else 0.0
        if not hours:  # they know of no end, and begin groups until there is one
            return set()
        if hours * 3600 < takes_s + 2 * AHEAD_S:
            self._too_short[name] = _TOO_SHORT.format(hours=hours, takes=takes_s / 3600)
            return set()
        return late

    def _keep(self, name: str, pool: WorkerPool, jobs: Mapping[str, Job], lasting: Lasting, takes_s: float) -> None:
        going = {token: job for token, job in jobs.items() if not job.has_ended and job.state not in _NO_MORE}
        alive = {token: job for token, job in going.items() if token not in self._draining}
        for token in self._late(name, pool, alive, takes_s):
            if ends_within(job := alive.pop(token), takes_s):
                self._drain(token, job)
        is_growing = any(job.state in _NOT_YET for job in alive.values())
        target = wanted(pool, len(alive), lasting, is_growing=is_growing)
        if target == len(alive):
            return
        # How it is from now on says whether that was right.
        self._since.pop(name, None)
        if target < len(alive):
            # The youngest have the least to hand over, and those that wait have nothing.
            by_age = sorted(alive, key=lambda token: (alive[token].state == "PENDING", int(alive[token].number)))
            for token in by_age[target:]:
                self._drain(token, alive[token])
            log.info("pool %s: %s of %s workers are to end", name, len(alive) - target, len(alive))
        elif len(failed := [job.state for job in jobs.values() if job.state in _FAILING]) >= MAX_FAILED:
            words = next(words for state, words in _FAILING.items() if state in failed)
            if self._failing.get(name) != words:
                log.warning("pool %s: %s", name, words)
            self._failing[name] = words
        else:
            self._failing.pop(name, None)
            self._start(name, pool, target - len(alive), settings.ROLLYARD_HOME)

    def _drain(self, token: str, job: Job) -> None:
        workers.drain(token, job)
        self._draining.add(token)

    def _start(self, name: str, pool: WorkerPool, count: int, home: Path) -> None:
        template = templates.read(home, pool.template)
        all_given = given(pool, template)
        workers.start(home, mark_of_workers(), template, pool.need, all_given, count, name)
        log.info("pool %s: %s more workers", name, count)

    def _lasting(self, name: str, found: Work, now: float) -> Lasting:
        kind = "left_s" if found.is_left else "played_s" if found.is_there else "nothing_s"
        before, since = self._since.setdefault(name, (kind, now))
        if before != kind:
            self._since[name] = (kind, now)
            since = now
        return Lasting(**{kind: now - since})
