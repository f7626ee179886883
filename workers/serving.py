"""Keep the inference replicas of a run serving: start, greet, probe, eject, replace.

    (slot is empty) ─▶ STARTING ──answers and holds the live version──▶ READY ◀──▶ SUSPECT ──3 failed probes──▶ ejected
                          └────────────── died, or silent for START_DEADLINE_S ──────────────▶ LOST, slot is empty

The only proof of life is a generated token: a server whose engine hangs still answers its health routes.
"""

import json
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from django.utils import timezone

from rollouts.models import PolicyVersion, Replica, ReplicaKind, Run
from rollouts.selectors import fleet
from rollouts.services import replicas
from rollouts.states import REPLICA_TERMINAL, ReplicaState
from workers import accelerators, inference, lifecycle
from workers.inference import InferenceError, VllmAdmin
from workers.lifecycle import HopelessError
from workers.replica_pool import api_key

log = logging.getLogger(__name__)

PROBE_EVERY_S = 5.0
PROBE_SUSPECT_EVERY_S = 2.0
PROBE_DEADLINE_S = 8.0
GREET_DEADLINE_S = 3.0
EJECT_AFTER = 3
"""Failed probes in a row: a hung server is out after about 30 s."""
START_DEADLINE_S = 900.0
MAX_FAILED_STARTS = 3
LONGEST_BACK_OFF_S = 30.0
_STARTED_WITH = "started_with.json"


class Servers:
    """The inference replicas of all runs. Remembers only when it probed, so that it may be lost."""

    def __init__(self) -> None:
        self._probed_at: dict[int, float] = {}

    def tend(self, run: Run) -> None:
        """Bring the run's inference replicas one step closer to what is wanted. Raises HopelessError."""
        alive = list(fleet.list_alive(run, ReplicaKind.INFERENCE))
        due = []
        for replica in alive:
            seen = lifecycle.observe(replica)
            if not seen.alive:
                lifecycle.bury(replica, seen)
            elif replica.state == ReplicaState.STOPPING:
                lifecycle.end([replica], reason=replica.state_reason)
            elif self._is_due(replica):
                due.append(replica)
        self._examine(run, due)
        taken = {replica.slot for replica in fleet.list_alive(run, ReplicaKind.INFERENCE)}
        for slot in sorted(set(range(run.parsed.inference.replicas)) - taken):
            _start(run, slot)

    def _is_due(self, replica: Replica) -> bool:
        pause_s = PROBE_EVERY_S if replica.state == ReplicaState.READY else PROBE_SUSPECT_EVERY_S
        return time.monotonic() - self._probed_at.get(replica.pk, -pause_s) >= pause_s

    def _examine(self, run: Run, due: list[Replica]) -> None:
        """Probe replicas at the same time, then act on the answers one by one."""
        if not due:
            return
        with ThreadPoolExecutor(max_workers=len(due)) as threads:
            complaints = list(threads.map(_complaint, due))
        for replica, complaint in zip(due, complaints, strict=True):
            self._probed_at[replica.pk] = time.monotonic()
            if complaint:
                _doubt(replica, complaint)
            elif replica.state == ReplicaState.READY:
                replicas.answered(replica)
            else:
                _welcome(run, replica)


def target_version(run: Run) -> PolicyVersion | None:
    """What every replica of the run should serve: the live version, before there is one the initial model."""
    return PolicyVersion.objects.filter(run=run, version=max(run.live_version, 0)).first()


def admin_of(replica: Replica) -> VllmAdmin:
    return VllmAdmin(replica.base_url, api_key(replica))


def load_deadline_s(version: PolicyVersion) -> float:
    """Seconds that loading may take: a base, and the time to read the files from slow shared storage."""
    return 30.0 + version.size_bytes / 50e6


def _complaint(replica: Replica) -> str:
    """Ask for one token; return what is wrong, empty when nothing is. Touches no row: it runs in its own thread."""
    starting = replica.state == ReplicaState.STARTING
    try:
        with admin_of(replica) as admin:
            admin.probe(GREET_DEADLINE_S if starting else PROBE_DEADLINE_S)
            if replica.state == ReplicaState.READY:
                served = admin.version()
                # A newer one was loaded by a reconciler that died before it could say so; publishing repeats it.
                if served is None or served < (replica.loaded_version or 0):
                    return f"it serves version {served} instead of {replica.loaded_version}"
    except InferenceError as error:
        return str(error)
    return ""


def _doubt(replica: Replica, complaint: str) -> None:
    if replica.state == ReplicaState.STARTING:
        age_s = (timezone.now() - replica.created_at).total_seconds()
        if age_s > START_DEADLINE_S:
            lifecycle.eject(replica, reason=f"no answer {age_s:.0f} s after its start: {complaint}")
        return
    replica = replicas.suspect(replica, reason=complaint)
    if replica.probe_failures >= EJECT_AFTER:
        lifecycle.eject(replica, reason=f"{replica.probe_failures} failed probes, the last: {complaint}")


def _welcome(run: Run, replica: Replica) -> None:
    """Let a replica that answers serve, once it holds what the others hold."""
    target = target_version(run)
    if target is None:
        return
    try:
        with admin_of(replica) as admin:
            if admin.version() != target.version:
                if replica.state == ReplicaState.STARTING and _started_with(replica) == target.version:
                    admin.set_version(target.version)
                else:
                    admin.load_weights(Path(target.path), target.version, deadline_s=load_deadline_s(target))
    except InferenceError as error:
        log.warning("%s did not load version %s: %s", replica.name, target.version, error)
        if replica.state == ReplicaState.STARTING:
            lifecycle.eject(replica, reason=f"could not load version {target.version}: {error}")
        else:
            _doubt(replica, str(error))
        return
    replicas.ready(replica, loaded_version=target.version)


def _start(run: Run, slot: int) -> None:
    """Start a server in an empty slot, unless it is too soon after the last failure. Raises HopelessError."""
    past = Replica.objects.filter(run=run, kind=ReplicaKind.INFERENCE, slot=slot, state__in=REPLICA_TERMINAL)
    failed = []
    for replica in past.order_by("-id")[:MAX_FAILED_STARTS]:
        if replica.answered_at is not None:
            break
        failed.append(replica)
    if len(failed) >= MAX_FAILED_STARTS:
        raise HopelessError(
            f"inference server {slot} ended {len(failed)} times before its first answer; {failed[0].state_reason}"
        )
    if failed and failed[0].ended_at is not None:
        waited_s = (timezone.now() - failed[0].ended_at).total_seconds()
        if waited_s < lifecycle.back_off_s(len(failed), longest_s=LONGEST_BACK_OFF_S):
            return
    target = target_version(run)
    if target is None:
        return
    config = run.parsed
    replica = lifecycle.reserve(run, kind=ReplicaKind.INFERENCE, slot=slot)
    port = _free_port()
    replicas.address(replica, base_url=f"http://127.0.0.1:{port}")
    directory = Path(replica.directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _STARTED_WITH).write_text(json.dumps({"version": target.version}))
    cpu = accelerators.serves_on_cpu()
    lifecycle.launch(
        replica,
        argv=inference.argv(target.path, port, config.inference, cpu=cpu),
        environ={
            **inference.environ(config.inference, cpu=cpu, api_key=api_key(replica)),
            **({} if cpu else accelerators.server_environ(slot, config.trainer.world_size)),
        },
    )


def _started_with(replica: Replica) -> int | None:
    try:
        version: int = json.loads((Path(replica.directory) / _STARTED_WITH).read_text())["version"]
    except (OSError, ValueError, KeyError):
        return None
    return version


def _free_port() -> int:
    """A port nobody listens on now. Should somebody take it first, the server ends and gets another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
