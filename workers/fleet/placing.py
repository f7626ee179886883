"""Give a run its share of this machine, or say what it waits for; whoever can never begin here is told at once."""

import os
import platform

from rollouts.models import PlacementKind, Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.runs import life, placements
from rollouts.services.runs.placements import Wish
from trainers.run_config import RunConfig
from workers.fleet import accelerators, commands
from workers.fleet.lifecycle import UnrecoverableError


def place(run: Run) -> bool:
    """Have the run its GPUs promised, where this machine has any, and the cores and the memory that it asks for; False
    while it waits for them. Of more processes than there are GPUs some share, but none of the trainer or of one server.
    Raises UnrecoverableError."""
    config, host = run.parsed, platform.node()
    gpus, cores, memory = accelerators.list_gpus(), accelerators.list_cores(), accelerators.list_memory()
    wishes = [
        Wish(PlacementKind.GPU, gpus, min(len(gpus), commands.gpus_wanted(config))),
        Wish(PlacementKind.CORE, cores, commands.cores_wanted(config)),
        Wish(PlacementKind.MEMORY, memory, commands.memory_wanted(config)),
    ]
    if why := _never_fits(config, host, wishes):
        raise UnrecoverableError(why)
    wait = placements.promise(run, host, wishes)
    if wait is not None:
        life.note_wait(run, wait)
    return wait is None


def held(run: Run, kind: PlacementKind) -> list[str]:
    """What of a kind a run has for a replica that is about to start: its GPUs, or its cores.

    Raises UnrecoverableError where an administrator has given some of it to others since, or it was promised twice.
    """
    promised = placements.held(run, kind)
    if kind == PlacementKind.CORE:
        there = accelerators.list_cores()
    elif accelerators.VISIBLE in os.environ:
        there = accelerators.list_gpus()
    else:  # they are counted by files, which a driver that nobody has used yet has not made
        there = promised
    lost = [*(unit for unit in promised if unit not in there), *placements.taken(run, kind)]
    if gone := [f"{kind.label} {unit}" for unit in lost]:
        raise UnrecoverableError(Reason(ReasonCode.PROMISE_GONE, units=", ".join(gone), host=platform.node()))
    return promised


_TOO_LITTLE = {
    PlacementKind.CORE: ReasonCode.CORES_TOO_FEW,
    PlacementKind.MEMORY: ReasonCode.MEMORY_TOO_LITTLE,
}


def _never_fits(config: RunConfig, host: str, wishes: list[Wish]) -> Reason | None:
    """Why a run cannot begin on this machine, however long it waits."""
    on_cpu = accelerators.serves_on_cpu(elsewhere=commands.is_on_jobs(config))
    if config.is_played and commands.slots(config) and config.inference.pipeline_parallel > 1 and on_cpu:
        fault = "its build for CPUs knows no stages, so inference.pipeline_parallel has to be 1"
        return Reason(ReasonCode.SERVER_INPUT, fault=fault)
    for wish in wishes:
        wanted, there = wish.number, len(wish.there)
        if wish.kind == PlacementKind.GPU:
            if not there and commands.gpus_wanted(config) and config.trainer.device == "cuda":
                fault = f"{host} has no GPU: set trainer.device to 'cpu', or to 'auto' for what there is"
                return Reason(ReasonCode.TRAINER_INPUT, fault=fault)
            of_a_server = commands.gpus_of_a_server(config)
            if wanted and of_a_server > there:
                return Reason(ReasonCode.GPUS_TOO_FEW, wanted=of_a_server, host=host, there=there)
            of_trainer = commands.gpus_of_trainer(config)
            if wanted and of_trainer > there:
                fault = f"each of its {of_trainer} processes computes on a GPU of its own, and {host} has {there}"
                fix = "lower trainer.world_size, or set trainer.device to 'cpu'"
                return Reason(ReasonCode.TRAINER_INPUT, fault=f"{fault}: {fix}")
        elif wanted > there:
            return Reason(_TOO_LITTLE[wish.kind], wanted=wanted, host=host, there=there)
    return None
