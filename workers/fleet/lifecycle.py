"""Replicas as a row and a process at once: start, observe, end, and end the orphans that no row wants.

The row comes first: whatever dies between row and process is seen as a replica that was never started, and a process
whose row has ended is an orphan.
"""

import errno
import json
import logging
import re
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from django.conf import settings

from environments import disk
from environments.client.address import SCHEME
from rollouts.errors import StateConflict
from rollouts.models import Replica, ReplicaKind, Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.runs import replica_loads, replicas, tokens
from rollouts.states import REPLICA_TERMINAL, RUN_TERMINAL, ReplicaState
from workers.database import give_back
from workers.fleet import accelerators, commands, hub, jobs
from workers.fleet.commands import Command
from workers.fleet.hearts import Hearts
from workers.fleet.keys import key_of
from workers.launchers.base import (
    End,
    Handle,
    JobSize,
    Launcher,
    LauncherAway,
    LaunchError,
    LaunchSpec,
    Observation,
    scratch,
    sockets_of,
)
from workers.launchers.local import LocalLauncher
from workers.slurm import templates

log = logging.getLogger(__name__)

STOP_DEADLINE_S = 20.0
GRACE_S = 15.0
"""Below the deadline, so that a replica that does not end by itself still leaves its exit file."""
SWEEP_DEADLINE_S = 2.0
HEARTBEAT_DEADLINE_S = 60.0
"""A replica counts as dead when its shepherd was seen to write no heartbeat for so long."""
_HEARTS = Hearts()
_MAX_CHARACTERS = 300
_MAX_FAULT_BYTES = 64 * 1024
_LAST_LINES = 3
_PREFIX = re.compile(r"^(\[rank\d+\]: |\(\w+ pid=\d+\) )+")
"""What torchrun and vLLM put before the lines of their processes."""
_TORCHRUN_SUMMARY = "ChildFailedError"
"""The exception that torchrun itself ends with: it only says that one of its processes failed."""

_FAULT_VARIABLE = "ROLLYARD_FAULT_FILE"
"""Names the file in which a replica that dies of its input says so; see `fault_of`."""

_LAUNCHERS: dict[str, Launcher] = {"local": LocalLauncher(), "slurm": jobs.SLURM}


_ENDS = {
    End.DIED: ReasonCode.DIED,
    End.ASKED: ReasonCode.ASKED_TO_END,
    End.ABANDONED: ReasonCode.SUPERVISOR_GONE,
    End.UNWATCHED: ReasonCode.SHEPHERD_DIED,
    End.UNSTARTED: ReasonCode.NEVER_STARTED,
    End.SILENT: ReasonCode.NO_HEARTBEAT,
    End.TIME_LIMIT: ReasonCode.TIME_LIMIT,
    End.PREEMPTED: ReasonCode.PREEMPTED,
    End.CANCELLED: ReasonCode.CANCELLED_OUTSIDE,
    End.NODE_FAILED: ReasonCode.NODE_FAILED,
    End.OUT_OF_MEMORY: ReasonCode.OUT_OF_MEMORY,
    End.VANISHED: ReasonCode.JOB_VANISHED,
    End.LIMIT: ReasonCode.LIMIT_EXCEEDED,
}


OUTSIDE_ENDS = frozenset({End.ASKED, End.ABANDONED, End.PREEMPTED, End.CANCELLED, End.NODE_FAILED, End.VANISHED})
"""Ends that say nothing about what has ended: it may be started again however often."""
OUTSIDE_REASONS = [ReasonCode.LAUNCHER_AWAY.value, *(_ENDS[end].value for end in OUTSIDE_ENDS)]
_ANYWHERE = {_ENDS[end].value for end in (End.TIME_LIMIT, End.OUT_OF_MEMORY, End.LIMIT)}
"""Ends that would have come on any other node, too."""


_NO_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE}
"""Errors of a disk that is full, or not there for a while."""


class UnrecoverableError(Exception):
    """The run cannot go on, for this reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


def handle_of(replica: Replica) -> Handle:
    return Handle(str(replica.token), Path(replica.directory))


def launcher_of(replica: Replica) -> Launcher:
    return _LAUNCHERS[replica.launcher]


def reserve(run: Run, *, kind: ReplicaKind, slot: int, policy: str = "") -> Replica:
    """Make the row of a replica that is about to be launched."""
    return replicas.create(run, kind=kind, policy=policy, slot=slot, launcher=run.parsed.launcher.type)


def own_places() -> list[Path]:
    """Where what a run is given is opened to its account: the home, the runs, and what was fetched from the hub."""
    return [settings.HOME.path, Path(settings.ROLLYARD_RUNS_DIR), hub.cache()]


def bring(replica: Replica, path: Path) -> None:
    """Have a server see a directory that was written since it began. Raises LaunchError. Touches no row."""
    launcher_of(replica).bring(handle_of(replica), path)


@contextmanager
def starting(replica: Replica) -> Iterator[None]:
    """While a reserved replica is started: one that cannot be is lost, with the reason. A disk that takes nothing says
    as little about what was to be started as a launcher that does not answer. That may be so for weeks: nothing is left
    of it but the row."""
    try:
        yield
    except (LaunchError, OSError) as error:
        log.warning("%s was not started: %s", replica.name, error)
        is_away = isinstance(error, LauncherAway) or getattr(error, "errno", None) in _NO_DISK
        code = ReasonCode.LAUNCHER_AWAY if is_away else ReasonCode.START_FAILED
        if is_away:
            tokens.revoke(replica)
            with suppress(OSError):
                disk.clear_away(Path(replica.directory))
        replicas.lost(replica, exit_code=None, reason=Reason(code, error=str(error)))


def launch(replica: Replica, command: Command, *, after: Iterable[Replica] = ()) -> None:
    """Start a reserved replica, away from where those failed that it comes after, if there is elsewhere; as `starting`
    has it."""
    variables = {**command.environ, _FAULT_VARIABLE: str(_fault_file(replica))}
    config, is_here = replica.run.parsed, replica.launcher == "local"
    is_server = replica.kind == ReplicaKind.INFERENCE
    need = JobSize() if is_here else commands.need(config, replica.kind)
    gpus, cores = _size(replica, command, need)
    replicas.given(replica, gpus=gpus, cores=cores)
    spec = LaunchSpec(
        str(replica.token),
        Path(replica.directory),
        command.argv,
        variables,
        grace_s=GRACE_S,
        reads=command.reads,
        writes=command.writes,
        ours=[*own_places(), *([] if is_here else [sockets_of(key_of(str(replica.token)))])],
        gpus=bool(command.environ.get(accelerators.VISIBLE)) if is_here else need.gpus > 0,
        network=need.nodes > 1,
        cores=command.cores,
        need=need,
        template=config.launcher.template,
        serves=jobs.server_socket(replica) if is_server else None,
        key=key_of(str(replica.token)),
        sends=[] if is_here else jobs.sent(replica, command),
        keeps=[] if is_here or is_server else [replica.run.directory / name for name in ("data", "tracking")],
        asks=None if is_server or is_here else Path(jobs.way_here(replica).removeprefix(SCHEME)),
        url=settings.NODES_URL,
        avoids=sorted({each.host for each in after if each.host and each.reason_code not in _ANYWHERE}),
    )
    with starting(replica):
        launcher_of(replica).start(spec)


def observe(replica: Replica) -> Observation:
    """Poll its process; it counts as dead when its heart was seen not to beat for HEARTBEAT_DEADLINE_S."""
    seen = launcher_of(replica).poll(handle_of(replica))
    if not seen.alive:
        _HEARTS.forget(str(replica.token))
    elif _HEARTS.silent_s(str(replica.token), seen.heartbeat_at) > HEARTBEAT_DEADLINE_S:
        return replace(seen, alive=False, exit_code=None, end=End.SILENT)
    return seen


def has_begun(replica: Replica, seen: Observation) -> bool:
    """Note what a replica waits for, or, once it is at work, where it answers and its heartbeat; return whether it
    is."""
    _locate(replica, seen)
    if seen.waiting:
        replicas.waits(replica, reason=Reason(ReasonCode.QUEUED, why=seen.waiting))
        return False
    if replica.begun_at is None:
        replicas.begun(replica, base_url=seen.base_url, hours=_hours_of(replica))
    if seen.heartbeat_age_s is not None:
        replica_loads.heard(replica, seen.heartbeat_age_s)
    return True


def mark_lost(replica: Replica, seen: Observation) -> None:
    """Record that a replica's process has ended unasked, after ending every process that it left behind.

    Blocks for up to SWEEP_DEADLINE_S.
    """
    _locate(replica, seen)
    give_back()
    launcher_of(replica).sweep(str(replica.token), SWEEP_DEADLINE_S)
    words = fault_of(replica) or ": ".join(filter(None, (seen.words, last_log_lines(replica))))
    reason = reason_of(seen, words, replica.kind)
    replicas.lost(replica, exit_code=seen.exit_code, reason=reason)


def reason_of(seen: Observation, words: str = "", kind: str = "") -> Reason:
    """The reason that is stored for an exit: how the process ended, its exit code, the end of its log or its limit."""
    if seen.end is End.LIMIT:  # of which the process knew nothing
        return Reason(_ENDS[seen.end], exit_code=seen.exit_code, **seen.excess)
    if seen.end is End.OUT_OF_MEMORY:
        return Reason(_ENDS[seen.end], exit_code=seen.exit_code, kind=kind)
    more = {"age_s": seen.heartbeat_age_s} if seen.end is End.SILENT else {}
    return Reason(_ENDS[seen.end], exit_code=seen.exit_code, last_words=words, **more)


def eject(replica: Replica, *, reason: Reason) -> None:
    """Terminate an unhealthy replica and mark it lost; its slot is free for another. Blocks up to STOP_DEADLINE_S."""
    give_back()
    seen = launcher_of(replica).stop(handle_of(replica), STOP_DEADLINE_S)
    replicas.lost(replica, exit_code=seen.exit_code, reason=reason)


def end(replicas_to_end: Iterable[Replica], *, reason: Reason | None) -> None:
    """End replicas in parallel, each with every process it started: `stopping`, then `exited`.

    Blocks for up to STOP_DEADLINE_S. Replicas whose end somebody else records meanwhile are skipped. Raises what kept
    one from being ended, once the others are.
    """
    left = list(replicas_to_end)
    for replica in left:
        if replica.state != ReplicaState.STOPPING:
            with suppress(StateConflict):
                replicas.stopping(replica, reason=reason)
    give_back()
    with ThreadPoolExecutor(max_workers=max(1, len(left))) as threads:
        ends = [threads.submit(_stop, replica) for replica in left]
    for replica, ended in zip(left, ends, strict=True):
        if ended.exception() is None:
            with suppress(StateConflict):  # somebody else has recorded its end
                replicas.exited(replica, exit_code=ended.result().exit_code, reason=reason)
    for ended in ends:
        ended.result()


def last_log_lines(replica: Replica) -> str:
    """The end of its log in one line that fits into a reason: the last exception, else the last lines."""
    lines = [_PREFIX.sub("", line) for line in launcher_of(replica).logs(handle_of(replica), 400).splitlines()]
    exceptions, inside = [], False
    for line in lines:
        if line.startswith("Traceback (most recent call last)"):
            inside = True
        elif inside and line and not line[0].isspace():
            inside = False
            if _TORCHRUN_SUMMARY not in line:
                exceptions.append(line)
    words = exceptions[-1:] or [line.strip() for line in lines if line.strip()][-_LAST_LINES:]
    return " | ".join(words)[-_MAX_CHARACTERS:]


def fault_of(replica: Replica) -> str:
    """What the replica was given that it died of, in a sentence; empty when it died of something else.

    Trainers write it for faults of model, data and config (`trainers.errors.InputFault`), inference servers for what
    vLLM refuses before it serves. Whoever would start another reads it first: that one would end the same.
    """
    try:
        return str(json.loads(disk.read_regular(_fault_file(replica), _MAX_FAULT_BYTES))["message"])[:_MAX_CHARACTERS]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _fault_file(replica: Replica) -> Path:
    return scratch(Path(replica.directory)) / "fault.json"


def end_orphans() -> None:
    """End processes of replicas whose row, or whose run, has ended: nothing outlives its run."""
    for replica in Replica.objects.filter(run__state__in=RUN_TERMINAL).exclude(state__in=REPLICA_TERMINAL):
        log.warning("run %s is over but %s is %s; ending it", replica.run_id, replica.name, replica.state)
        end([replica], reason=Reason(ReasonCode.RUN_OVER))
    for launcher in _LAUNCHERS.values():
        carried = [token for token in launcher.living() if _is_uuid(token)]
        for replica in Replica.objects.filter(token__in=carried, state__in=REPLICA_TERMINAL):
            log.warning("ending what is left of %s", replica.name)
            launcher.sweep(str(replica.token), SWEEP_DEADLINE_S)


def _size(replica: Replica, command: Command, need: JobSize) -> tuple[int, int]:
    """The GPUs and cores of all of its nodes; on this machine those that it was promised, or else the cores that it
    makes threads for."""
    cores = jobs.cores_of(replica.run, ReplicaKind(replica.kind))
    if cores is not None:
        return need.gpus * need.nodes, cores * need.nodes
    visible = command.environ.get(accelerators.VISIBLE, "")
    threads = int(command.environ.get("OMP_NUM_THREADS", 1))
    config = replica.run.parsed
    processes = config.trainer.world_size if replica.kind == ReplicaKind.TRAINER else config.inference.devices
    return len(visible.split(",")) if visible else 0, len(command.cores) or threads * processes


def _locate(replica: Replica, seen: Observation) -> None:
    """Note the number of its job and the node it was given, once they are known."""
    job, host = seen.job or replica.job_number, replica.host or seen.node
    if (job, host) != (replica.job_number, replica.host):
        replicas.located(replica, job_number=job, host=host)


def _hours_of(replica: Replica) -> float:
    """For how long its job may run; 0 where nobody says."""
    config = replica.run.parsed
    if replica.launcher == "local":
        return 0.0
    try:
        template = templates.read(settings.HOME.path, config.launcher.template)
    except templates.TemplateError:
        return 0.0
    return commands.need(config, replica.kind).hours or template.hours


def _stop(replica: Replica) -> Observation:
    """Runs in a thread of its own and so touches no row."""
    return launcher_of(replica).stop(handle_of(replica), STOP_DEADLINE_S)


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
