"""Reconcile one run: a step closer to what its row asks for. Idempotent, and may be killed at any line.

    pending ─▶ starting ─▶ running ─▶ finishing ─▶ finished
                  └──────────┴───────────┴──▶ failed (UnrecoverableError), or stopping ─▶ stopped

Blocks while it probes, publishes or ends replicas; each of these has a deadline, and every run has a thread of its own.
"""

import asyncio
import logging
import time
from contextlib import suppress
from datetime import datetime
from functools import partial
from threading import BoundedSemaphore

from django.db import DatabaseError, InterfaceError, OperationalError
from django.utils import timezone

from environments.errors import RegistryError
from environments.types import Split
from rollouts.errors import Invalid, StateConflict
from rollouts.models import Evaluation, PolicyVersion, Run, RunKind
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import fleet, groups, machines, runs
from rollouts.services import models, trust
from rollouts.services.curation import reviews
from rollouts.services.datasets import learning
from rollouts.services.groups import cancelling, evaluations, leases, problems
from rollouts.services.outside import deliveries, sessions
from rollouts.services.runs import life, policies, tokens, trainer_writes
from rollouts.states import RUN_GENERATING, RUN_TERMINAL, RUN_TRAINING, EvaluationState, RunState
from trainers.run_config import EnvironmentRef
from workers import isolation
from workers.database import give_back
from workers.fleet import (
    commands,
    fetching,
    forking,
    hub,
    jobs,
    lifecycle,
    placing,
    publishing,
    retention,
    training,
)
from workers.fleet.lifecycle import UnrecoverableError
from workers.fleet.serving import Servers
from workers.launchers import confinement
from workers.slurm.queue import SlurmAway, SlurmClosed

log = logging.getLogger(__name__)

_ENVIRONMENT_DEADLINE_S = 60.0
BROKEN_DEADLINE_S = 300.0
MAX_BRINGING = 8
"""Runs whose models and data are fetched or exported at a time."""
_bringing = BoundedSemaphore(MAX_BRINGING)
_MAX_STATES = 4
"""Transitions of one run per pass; the next pass goes on."""


class Convergence:
    """What the reconciler does for a run."""

    def __init__(self) -> None:
        self._servers = Servers()
        self._broken_since: dict[int, float] = {}
        """Run id -> monotonic time since which every pass over it raised."""
        self._at_work: dict[int, datetime] = {}
        """Run id -> when one of its jobs was last seen at work."""
        self._brought: set[int] = set()
        """Ids of runs that have all that they start from, and wait for something else. May be lost."""

    def converge(self, run_id: int) -> None:
        """Make one pass over a run, and another at once when its state changed. Blocks while it probes."""
        for _ in range(_MAX_STATES):
            run = Run.objects.select_related("project", "created_by").get(pk=run_id)
            before = run.state
            if before in RUN_TERMINAL:
                return
            try:
                self._step(run)
            except UnrecoverableError as error:
                self._give_up(run, error.reason)
            except StateConflict as error:
                log.info("run %s changed meanwhile: %s", run.key, error)
            except (DatabaseError, InterfaceError):
                raise
            except Exception as error:
                since = self._broken_since.setdefault(run_id, time.monotonic())
                if time.monotonic() - since < BROKEN_DEADLINE_S:
                    raise
                # A bug of ours, or a disk that stays full: a person has to see it on the run, not in a log.
                self._give_up(run, Reason(ReasonCode.RECONCILER_BROKEN, error=f"{type(error).__name__}: {error}"))
            else:
                self._broken_since.pop(run_id, None)
            run.refresh_from_db()
            if run.state == before:
                return

    def _step(self, run: Run) -> None:
        if run.state == RunState.PENDING:
            self._begin(run)
        elif run.state == RunState.STOPPING:
            _end(run, to=RunState.STOPPED, reason=run.reason)
        elif run.state in RUN_GENERATING:
            self._tend(run)

    def _begin(self, run: Run) -> None:
        _ask_for_leave(run)
        # Nothing of an external run is started here.
        if run.kind != RunKind.EXTERNAL and (complaint := confinement.complaint_here()):
            raise UnrecoverableError(Reason(ReasonCode.NO_SANDBOX, error=complaint))
        if run.pk not in self._brought:  # for days, perhaps: the hub is not asked at every pass
            if not _bring(run):
                return
            self._brought.add(run.pk)
        if not placing.place(run) or not _would_be_taken(run):
            return
        _make_model(run)
        if run.parsed.is_played:
            for ref in run.parsed.environments:
                _try_environment(run, ref)
            if not PolicyVersion.objects.filter(run=run).exists():
                weights = commands.start_weights(run.parsed)
                policies.register_initial(run, path=weights, size_bytes=hub.size_bytes(weights))
        life.start(run)
        self._brought.discard(run.pk)

    def _tend(self, run: Run) -> None:
        _ask_for_leave(run)
        _ask_for_use(run)
        if self._give_back(run):
            return
        reviews.expire(run)
        if run.parsed.is_trained and commands.is_on_jobs(run.parsed):
            # Before its servers, which might take the nodes that it needs.
            training.tend(run)
            run.refresh_from_db()
        if run.parsed.is_played:
            leases.quarantine_expired(run)
            cancelling.cancel_stale(run)
            sessions.close_due(run)
            evaluations.conclude(run)
            if run.kind == RunKind.EVAL:
                evaluations.advance(run)
            _make_next(run)
            # Before the probes: a hung replica must not hold up the version that the others wait for.
            publishing.publish(run)
            self._servers.tend(run)
            run.refresh_from_db()
            publishing.publish(run)
        if run.parsed.is_trained and not commands.is_on_jobs(run.parsed):
            training.tend(run)
        if run.kind == RunKind.EXTERNAL:
            deliveries.conclude(run)  # should who sent the last batch have died right after it
            trainer_writes.finish_forgotten(run)
        else:
            retention.prune(run)
        run.refresh_from_db()
        if run.state == RunState.FINISHING and training.is_gone(run) and not _is_owed(run):
            _finish(run)

    def _give_back(self, run: Run) -> bool:
        """Stop a run whose jobs hold their nodes for nothing, if it wants that; returns whether it was."""
        limit_s = run.parsed.launcher.idle_limit_s
        if not limit_s or not commands.is_on_jobs(run.parsed):
            return False
        if (idle := machines.idle_since(run)) is None:
            self._at_work[run.pk] = timezone.now()
            return False
        jobs_of_run, since = idle
        # A trainer that has loaded its model, or saved a checkpoint, has not waited since before it did.
        idle_s = (timezone.now() - max(since, self._at_work.get(run.pk, since))).total_seconds()
        if idle_s <= limit_s:
            return False
        why = Reason(ReasonCode.NODES_GIVEN_BACK, jobs=jobs_of_run, idle_s=idle_s, limit_s=limit_s)
        life.request_stop(run, actor="reconciler", reason=why)
        return True

    def _give_up(self, run: Run, reason: Reason) -> None:
        run.refresh_from_db()
        log.error("run %s: %s", run.key, reason)
        if run.state == RunState.FINISHING:
            # Everything was trained; only the last version could not be served.
            why = Reason(ReasonCode.UNEVALUATED, why=reason)
            try:
                _finish(run, reason=why)
            except (DatabaseError, InterfaceError, StateConflict):
                raise
            except Exception:
                log.exception("run %s: finishing it is what breaks", run.key)
                _end(run, to=RunState.FINISHED, reason=why)
        elif run.state in RUN_GENERATING or run.state == RunState.PENDING:
            _end(run, to=RunState.FAILED, reason=reason)


def _bring(run: Run) -> bool:
    """Fetch and export what the run starts from, and write what it learns from, which may take hours; False where its
    turn has not come yet.

    Each pass asks until it has all. The rest of the reconciler's threads are for runs that are under way. Raises
    UnrecoverableError, and StateConflict where somebody stops it meanwhile.
    """
    if not hub.names_of(run.parsed) and run.forked_from is None and not run.datasets.exists():
        return True
    if not _bringing.acquire(blocking=False):
        life.note_wait(run, Reason(ReasonCode.FETCH_WAITS, others=MAX_BRINGING))
        return False
    try:
        look = partial(_look_whether_wanted, run)
        fetching.fetch(run, look=look)
        forking.make_start(run, look=look)
        learning.prepare(run)
    finally:
        _bringing.release()
    return True


def _look_whether_wanted(run: Run) -> None:
    """Raises StateConflict once a run is to stop: what takes hours before it begins, or between two versions, looks all
    the while."""
    try:
        is_to_stop = Run.objects.filter(pk=run.pk, state=RunState.STOPPING).exists()
    except (DatabaseError, InterfaceError):
        return  # what was fetched for hours is not dropped because the store restarts
    finally:
        give_back()
    if is_to_stop:
        raise StateConflict(f"Run {run.key} is to stop.")


def _would_be_taken(run: Run) -> bool:
    """Ask SLURM, where a run is made of jobs, whether it takes such; False while it does not answer, or puts them off.
    Raises UnrecoverableError."""
    try:
        complaint = jobs.complaint(run)
    except (SlurmAway, SlurmClosed) as error:
        life.note_wait(run, Reason(ReasonCode.SLURM_AWAY, error=str(error)))
        return False
    if complaint:
        raise UnrecoverableError(Reason(ReasonCode.SLURM_REFUSED, error=complaint))
    return True


def _ask_for_leave(run: Run) -> None:
    """Raises UnrecoverableError for code from elsewhere that nobody allows, and where whoever launched it has left."""
    if found := trust.missing_of(run):
        told = "; ".join(f"{need.field} {trust.fault(need)}" for need in found)
        raise UnrecoverableError(Reason(ReasonCode.NOT_TRUSTED, error=told.rstrip(".")))
    if run.kind != RunKind.EXTERNAL and runs.launcher_left(run):
        assert run.created_by is not None
        raise UnrecoverableError(Reason(ReasonCode.LAUNCHER_LEFT, user=run.created_by.username))


def _ask_for_use(run: Run) -> None:
    """Raises UnrecoverableError where nothing that is played can be trained any more: a person has to look."""
    limit = run.parsed.fruitless_limit if run.kind == RunKind.RL and run.state in RUN_TRAINING else 0
    if limit and (last := groups.fruitless(run, limit)) is not None:
        raise UnrecoverableError(Reason(ReasonCode.FRUITLESS, groups=limit, last=last.reason))


def _make_model(run: Run) -> None:
    """Make the model that the run starts from, if it is one that is made when first needed.

    Raises UnrecoverableError.
    """
    try:
        models.make_built_in(run)
    except Invalid as error:
        raise UnrecoverableError(Reason(ReasonCode.MODEL_NOT_MADE, error=error.message)) from error


def _make_next(run: Run) -> None:
    """Make the files of what an eval run measures next, while nobody plays.

    Raises UnrecoverableError, and StateConflict where somebody stops it meanwhile.
    """
    if run.kind == RunKind.EVAL and (version := policies.find_publishable(run)) is not None:
        forking.make_version(run, version, look=partial(_look_whether_wanted, run))


def _try_environment(run: Run, ref: EnvironmentRef) -> None:
    """Make an environment once, as the drivers will, so that its errors fail the run before processes start; and count
    its problems, those that it is evaluated on too.

    Raises UnrecoverableError.
    """
    plan = run.parsed.evaluation
    held_out = Split(plan.split) if plan is not None and plan.problems else None

    async def count() -> tuple[int | None, int | None]:
        async with asyncio.timeout(_ENVIRONMENT_DEADLINE_S):
            environment = await isolation.load(run, ref)
            try:
                of_held_out = None if held_out is None else await isolation.count(environment, held_out)
                return of_held_out, await isolation.count(environment, Split.TRAIN) if run.kind == RunKind.RL else None
            finally:
                await isolation.close(environment)

    give_back()
    try:
        to_evaluate, to_train_on = asyncio.run(count())
        # Over this pass's own connection: each that waited for a second one might hold the last.
        if to_evaluate is not None:
            evaluations.note_count(run, ref.run_name, to_evaluate)
        if to_train_on is not None:
            problems.note_count(run, ref, to_train_on)
    except TimeoutError:
        late = "environment %s took more than %.0f s to load; the drivers will see, and count"
        log.warning(late, ref.run_name, _ENVIRONMENT_DEADLINE_S)
    except (OperationalError, InterfaceError):
        raise  # nothing that the environment did
    except (RegistryError, Invalid) as error:
        raise UnrecoverableError(Reason(ReasonCode.ENVIRONMENT_REFUSED, error=str(error))) from error
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise UnrecoverableError(Reason(ReasonCode.ENVIRONMENT_BROKEN, environment=ref.run_name, error=told)) from error


def _is_owed(run: Run) -> bool:
    """Whether the last version still has to go live, or its evaluation is being played."""
    if not run.parsed.is_played:
        return False
    playing = Evaluation.objects.filter(run=run, state=EvaluationState.PLAYING)
    return policies.find_publishable(run) is not None or playing.exists()


def _finish(run: Run, *, reason: Reason | None = None) -> None:
    """End a run that has done its steps, with its result registered first: nobody looks at a finished run again."""
    try:
        models.register_result(run)
    except Invalid as error:
        told = "; ".join([error.message, *error.fields.values()])
        reason = Reason(ReasonCode.RESULT_REFUSED, model=run.parsed.register_as, error=told, why=reason)
    _end(run, to=RunState.FINISHED, reason=reason)


def _end(run: Run, *, to: RunState, reason: Reason | None = None) -> None:
    """End every process of the run, then the run. A directory that cannot be deleted stays."""
    lifecycle.end(fleet.list_alive(run), reason=Reason(ReasonCode.RUN_ENDING, state=to.value))
    with suppress(OSError):
        retention.let_go(run)
    tokens.revoke_run_tokens(run)
    life.end(run, to=to, reason=reason)
