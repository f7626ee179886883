"""Keep the inference replicas of a run serving: start, probe, load weights, eject, replace.

    (slot is empty) ─▶ STARTING ──answers and holds the live version──▶ READY ◀──▶ SUSPECT ──failed probes──▶ ejected
                          └────────────── died, or silent for start_deadline_s ──────────────▶ LOST, slot is empty

The only proof of life is a generated token: a server whose engine hangs still answers its health routes. A full one has
the probe wait behind all others, so theirs count as well.

A server of one of the run's `[[policies]]` is kept like them, but for the versions: it serves what it started with.
"""

import json
import logging
import time
from datetime import datetime
from functools import partial
from pathlib import Path

from django.conf import settings
from django.utils import timezone

from environments.client.address import SCHEME
from rollouts.models import PlacementKind, PolicyVersion, Replica, ReplicaKind, Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import fleet
from rollouts.services.runs import replica_loads, replicas
from rollouts.states import REPLICA_TERMINAL, PolicyVersionState, ReplicaState
from workers.database import at_once
from workers.fleet import adapters, commands, hub, jobs, lifecycle, placing, tries
from workers.fleet.inference import (
    EngineLoad,
    InferenceError,
    ReplicaUnreachable,
    VllmAdmin,
    WeightsNotBrought,
    WeightsNotLoaded,
)
from workers.fleet.lifecycle import UnrecoverableError
from workers.fleet.replica_pool import api_key
from workers.launchers.base import LaunchError

log = logging.getLogger(__name__)

PROBE_EVERY_S = 5.0
"""Silence of a ready replica after which it is probed."""
PROBE_PAUSE_S = 2.0
"""Between probes of one that is not ready."""
PROBE_DEADLINE_S = 8.0
STARTING_PROBE_DEADLINE_S = 3.0
EJECT_AFTER = 3
"""Failed probes in a row."""
LOAD_EVERY_S = 5.0
"""Between two looks at what a ready replica is busy with."""
_LOAD_DEADLINE_S = 2.0
SILENT_S = 24.0
"""After this without an answer two failed probes suffice: a hung server is out within 30 s."""
START_DEADLINE_S = 900.0
"""Besides the time to read the model."""
_READ_BYTES_PER_S = 50e6
"""From slow shared storage."""
MAX_FAILED_STARTS = 3
LONGEST_BACK_OFF_S = 30.0
_STARTED_WITH = "started_with.json"


class Servers:
    """The inference replicas of all runs. Remembers only when it probed and looked, and that may be lost."""

    def __init__(self) -> None:
        self._probed_at: dict[int, float] = {}
        self._looked_at: dict[int, float] = {}

    def tend(self, run: Run) -> None:
        """Bring the run's inference replicas one step closer to what is wanted. Raises UnrecoverableError."""
        due = []
        for replica in fleet.list_alive(run, ReplicaKind.INFERENCE):
            seen = lifecycle.observe(replica)
            if not seen.alive:
                lifecycle.mark_lost(replica, seen)
            elif replica.state == ReplicaState.STOPPING:
                lifecycle.end([replica], reason=replica.reason)
            elif lifecycle.has_begun(replica, seen) and self._is_due(replica):
                due.append(replica)
        self._examine(run, due)
        self._look_at_loads(run)
        alive = fleet.list_alive(run, ReplicaKind.INFERENCE)
        taken = {commands.Slot(replica.policy, replica.slot) for replica in alive}
        for slot in commands.slots(run.parsed):
            if slot not in taken:
                _start(run, slot)

    def _is_due(self, replica: Replica) -> bool:
        if replica.state == ReplicaState.READY:
            # Drivers note what it answers to episodes: while it does, there is nothing to ask.
            return replica.answered_at is None or _age_s(replica.answered_at) >= PROBE_EVERY_S
        return time.monotonic() - self._probed_at.get(replica.pk, -PROBE_PAUSE_S) >= PROBE_PAUSE_S

    def _examine(self, run: Run, due: list[Replica]) -> None:
        """Talk to replicas at the same time, then act on the answers one by one."""
        target = target_version(run)
        if not due or target is None:
            return
        failures = at_once(partial(_probe, target), due)
        for replica, failure in zip(due, failures, strict=True):
            self._probed_at[replica.pk] = time.monotonic()
            if failure is not None:
                _handle_failed_probe(replica, failure)
            elif replica.state == ReplicaState.READY:
                replicas.answered(replica)
            else:
                replicas.ready(replica, loaded_version=None if replica.policy else target.version)

    def _look_at_loads(self, run: Run) -> None:
        """Note what ready replicas are busy with. Nothing follows from one that does not say."""
        now = time.monotonic()
        ready = fleet.list_alive(run, ReplicaKind.INFERENCE).filter(state=ReplicaState.READY)
        due = [each for each in ready if now - self._looked_at.get(each.pk, -LOAD_EVERY_S) >= LOAD_EVERY_S]
        if not due:
            return
        said = at_once(_load_of, due)
        for replica, found in zip(due, said, strict=True):
            self._looked_at[replica.pk] = now
            if found is not None:
                replica_loads.report(replica, **found._asdict())


def target_version(run: Run) -> PolicyVersion | None:
    """What every replica of the run's own policy should serve: the live version, before there is one the initial."""
    versions = PolicyVersion.objects.filter(run=run)
    # Asked anew each time: another version may have become live since the run's row was read.
    return versions.filter(state=PolicyVersionState.LIVE).first() or versions.order_by("version").first()


def admin_of(replica: Replica) -> VllmAdmin:
    return VllmAdmin(replica.base_url, api_key(replica))


def files_of(version: PolicyVersion, replica: Replica) -> Path:
    """What a replica loads for a version. To a server of a LoRA run a whole model is the one it has, and no adapter."""
    path, idle = Path(version.path), commands.idle_adapter(Path(replica.directory))
    return idle if idle.is_dir() and not adapters.is_adapter(path) else path


def load_deadline_s(version: PolicyVersion) -> float:
    """Seconds that loading may take."""
    return 30.0 + version.size_bytes / _READ_BYTES_PER_S


def start_deadline_s(replica: Replica) -> float:
    """Seconds that a server may take to its first answer."""
    config = replica.run.parsed
    read = {config.model.path, commands.start_weights(config, replica.policy)}
    return START_DEADLINE_S + sum(map(hub.size_bytes, read)) / _READ_BYTES_PER_S


def _probe(target: PolicyVersion, replica: Replica) -> InferenceError | None:
    """Ask for one token, after bringing a replica that is not ready to the target version; return what failed. A
    frozen one is only asked.

    Makes HTTP requests only and touches no row: it runs in a thread of its own.
    """
    try:
        with admin_of(replica) as admin:
            if replica.policy:
                _see_a_token(replica, admin)
            elif replica.state == ReplicaState.STARTING:
                # Left paused by a reconciler that died as it loaded: no token comes before it is done again.
                if admin.is_paused():
                    load(admin, replica, target)
                _see_a_token(replica, admin)
                if admin.version() is None and started_with(replica) == target.version:
                    admin.set_version(target.version)
                elif admin.version() != target.version:
                    load(admin, replica, target)
            elif replica.state == ReplicaState.SUSPECT:
                # Half loaded, or left paused by a reconciler that died: it generates nothing before it is whole again.
                if admin.is_paused() or admin.version() != target.version:
                    load(admin, replica, target)
                _see_a_token(replica, admin)
            else:
                _see_a_token(replica, admin)
                served = admin.version()
                # A newer one was loaded by a reconciler that died before it could say so; publishing repeats it.
                if served is None or served < (replica.loaded_version or 0):
                    return InferenceError(f"it serves version {served} instead of {replica.loaded_version}")
    except InferenceError as error:
        return error
    return None


def _see_a_token(replica: Replica, admin: VllmAdmin) -> None:
    """Ask a server for a token. Raises InferenceError when neither that comes in time nor one that others asked for."""
    if replica.state == ReplicaState.STARTING:
        admin.probe(STARTING_PROBE_DEADLINE_S)
        return
    before = _load_of(replica)
    try:
        admin.probe(PROBE_DEADLINE_S)
    except ReplicaUnreachable:
        after = before and _load_of(replica)
        if not before or not after or after.tokens <= before.tokens:
            raise


def _load_of(replica: Replica) -> EngineLoad | None:
    """What a replica says it is busy with; None where it does not. Touches no row."""
    try:
        with admin_of(replica) as admin:
            return admin.load(_LOAD_DEADLINE_S)
    except InferenceError as error:
        log.debug("%s does not say what it is busy with: %s", replica.name, error)
        return None


def load(admin: VllmAdmin, replica: Replica, target: PolicyVersion) -> float:
    """Load a version into a replica, on whose node its files are first. Returns the seconds for which generation stood
    still. Raises InferenceError. Touches no row."""
    files = files_of(target, replica)
    try:
        lifecycle.bring(replica, files)
    except LaunchError as error:
        raise WeightsNotBrought(str(error)) from None
    return admin.load_weights(files, target.version, deadline_s=load_deadline_s(target))


def _handle_failed_probe(replica: Replica, failure: InferenceError) -> None:
    """Mark a replica as suspect, or eject it: one that is starting when it cannot load its weights or takes longer than
    `start_deadline_s`, any other after EJECT_AFTER failed probes in a row. Not one that has answered a driver since."""
    before = replica.answered_at
    replica.refresh_from_db(fields=["answered_at"])
    if isinstance(failure, ReplicaUnreachable) and replica.answered_at != before:
        return
    if replica.state == ReplicaState.STARTING:
        age_s = _age_s(replica.begun_at or replica.created_at)
        if isinstance(failure, WeightsNotLoaded) or age_s > start_deadline_s(replica):
            lifecycle.eject(replica, reason=Reason(ReasonCode.EJECTED_UNREADY, age_s=age_s, complaint=str(failure)))
        return
    replica = replicas.suspect(replica, reason=Reason(ReasonCode.PROBE_FAILED, complaint=str(failure)))
    silent_s = _age_s(replica.answered_at or replica.created_at)
    if replica.probe_failures >= EJECT_AFTER or (replica.probe_failures > 1 and silent_s > SILENT_S):
        reason = Reason(
            ReasonCode.EJECTED_SILENT, failures=replica.probe_failures, silent_s=silent_s, complaint=str(failure)
        )
        lifecycle.eject(replica, reason=reason)


def _start(run: Run, slot: commands.Slot) -> None:
    """Start a server in an empty slot, unless it is too soon after the last failure. Raises UnrecoverableError."""
    past = Replica.objects.filter(
        run=run, kind=ReplicaKind.INFERENCE, policy=slot.policy, slot=slot.number, state__in=REPLICA_TERMINAL
    )
    if tries.is_away(past):
        return
    failed = []
    for replica in past.exclude(reason_code__in=lifecycle.OUTSIDE_REASONS).order_by("-id")[:MAX_FAILED_STARTS]:
        if replica.answered_at is not None:
            break
        failed.append(replica)
    if failed and (fault := lifecycle.fault_of(failed[0])) and not _are_weights_gone(failed[0]):
        raise UnrecoverableError(Reason(ReasonCode.SERVER_INPUT, fault=fault))
    if len(failed) >= MAX_FAILED_STARTS:
        which = f"{slot.number} of the policy {slot.policy}" if slot.policy else slot.number
        last = failed[0].reason
        raise UnrecoverableError(Reason(ReasonCode.SERVER_HOPELESS, slot=which, times=len(failed), last=last))
    pause_s = tries.back_off_s(len(failed), longest_s=LONGEST_BACK_OFF_S)
    if failed and failed[0].ended_at and _age_s(failed[0].ended_at) < pause_s:
        return
    target = target_version(run)
    if target is None:
        return
    replica = lifecycle.reserve(run, kind=ReplicaKind.INFERENCE, policy=slot.policy, slot=slot.number)
    with lifecycle.starting(replica):
        _launch(replica, slot, target, after=failed)


def _launch(replica: Replica, slot: commands.Slot, target: PolicyVersion, *, after: list[Replica]) -> None:
    """Start a reserved server in its slot, with what a sandbox may read there when it is made. Raises OSError."""
    run, config = replica.run, replica.run.parsed
    socket = jobs.server_socket(replica)
    if replica.launcher == "local":
        replicas.address(replica, base_url=f"{SCHEME}{socket}")
    directory = Path(replica.directory)
    directory.mkdir(parents=True, exist_ok=True)
    if not slot.policy:
        commands.weights_of(run.directory).mkdir(exist_ok=True)
        (directory / _STARTED_WITH).write_text(json.dumps({"version": target.version}))
        if config.model.lora.rank:
            adapters.write_idle_adapter(commands.idle_adapter(directory), config.model.lora)
    command = commands.server(
        config,
        slot,
        weights=commands.start_weights(config, slot.policy) if slot.policy else target.path,
        directory=directory,
        socket=socket,
        caches=settings.HOME.caches / str(run.project_id),
        api_key=api_key(replica),
        gpus=placing.held(run, PlacementKind.GPU),
        held=placing.held(run, PlacementKind.CORE),
        cores=jobs.cores_of(run, ReplicaKind.INFERENCE),
    )
    lifecycle.launch(replica, command, after=after)


def started_with(replica: Replica) -> int | None:
    """The version of which a server of the run's own policy reads the weights as it starts."""
    try:
        version: int = json.loads((Path(replica.directory) / _STARTED_WITH).read_text())["version"]
    except (OSError, ValueError, KeyError):
        return None
    return version


def _are_weights_gone(replica: Replica) -> bool:
    """Whether what a server was started with was removed since: then a fault of its input says nothing of the next."""
    if (version := started_with(replica)) is None:
        return False
    return PolicyVersion.objects.filter(run=replica.run, version=version, path="").exists()


def _age_s(moment: datetime) -> float:
    return (timezone.now() - moment).total_seconds()
