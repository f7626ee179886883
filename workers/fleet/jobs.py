"""What is particular to replicas that are jobs: where their sockets are, what they ask for, what goes to nodes."""

from pathlib import Path
from typing import Any

from django.conf import settings

from environments.client.address import SCHEME
from rollouts.models import Checkpoint, Replica, ReplicaKind, Run
from rollouts.states import CheckpointState
from workers.fleet import commands, hub, inference
from workers.fleet.commands import Command
from workers.fleet.keys import key_of
from workers.launchers.base import sockets_of
from workers.slurm.launcher import SlurmLauncher
from workers.slurm.templates import TemplateError

SLURM = SlurmLauncher(settings.HOME.path, key_of)


def server_socket(replica: Replica) -> Path:
    """Where an inference server listens on its node."""
    if replica.launcher == "local":
        return settings.HOME.server_socket(replica.pk)
    return sockets_of(key_of(str(replica.token))) / "serve" / "vllm.sock"


def way_here(replica: Replica) -> str:
    """The URL at which a trainer asks the control plane, which from its sandbox is a socket's."""
    if replica.launcher == "local":
        return str(settings.RUNS_URL)
    return f"{SCHEME}{sockets_of(key_of(str(replica.token))) / 'ask' / 'api.sock'}"


def cores_of(run: Run, kind: ReplicaKind) -> int | None:
    """The cores that a replica has to itself; None where it shares this machine."""
    config = run.parsed
    if not commands.is_on_jobs(config):
        return None
    try:
        return SLURM.cores(config.launcher.template, commands.need(config, kind))
    except TemplateError:
        return 1  # said when it is started


def complaint(run: Run) -> str:
    """Why no job of a run would be taken; empty where it has none, or they would be. Raises SlurmAway, SlurmClosed."""
    config = run.parsed
    if not commands.is_on_jobs(config):
        return ""
    kinds = [ReplicaKind.TRAINER] * config.is_trained + [ReplicaKind.INFERENCE] * bool(commands.slots(config))
    needs = [commands.need(config, kind) for kind in kinds]
    return SLURM.complaint(config.launcher.template, needs, run.project.slug)


def sent(replica: Replica, command: Command) -> list[dict[str, Any]]:
    """What has to be on the node of a replica before it starts, if that does not share our files."""
    run = replica.run
    weights = commands.weights_of(run.directory)
    wanted = [path for path in command.reads if path != inference.EXTENSION]
    if replica.kind == ReplicaKind.TRAINER:
        wanted += [run.directory / "data", run.directory / "tracking"]
        # The last alone, for they are large; an earlier one too where the trainer before could not go on from that.
        complete = Checkpoint.objects.filter(run=run, state=CheckpointState.COMPLETE).order_by("-epoch", "-step")
        wanted += [Path(each.path) for each in complete[: 1 + run.trainer_restarts]]
    node_only = sockets_of(key_of(str(replica.token)))
    return [
        {"path": str(path), "follow_links": path.is_relative_to(hub.cache()), "is_empty": path == weights}
        for path in dict.fromkeys(wanted)
        if not path.is_relative_to(node_only)
    ]
