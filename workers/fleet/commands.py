"""The processes that a run is made of, as commands: a pure function of its config, of paths and of this machine's GPUs.

`serving` and `training` start them, `rollyard launch --dry-run` prints them. Needs neither Django nor a database.
"""

import sys
from pathlib import Path
from typing import NamedTuple

from trainers.run_config import RunConfig
from workers.fleet import accelerators, adapters, inference

_IDLE_ADAPTER = "idle_adapter"


class Command(NamedTuple):
    """What to start, and the variables it needs on top of the launcher's own. Secrets are in the variables only."""

    argv: list[str]
    environ: dict[str, str]


def start_weights(config: RunConfig) -> str:
    """What policy version 0 of a run is: a directory by its absolute path, or a name of a model hub."""
    path = config.model.lora.path or config.model.path
    return str(Path(path).resolve()) if Path(path).is_dir() else path


def idle_adapter(directory: Path) -> Path:
    """Where a server of a LoRA run finds an adapter that changes nothing, in its own directory."""
    return directory / _IDLE_ADAPTER


def server(config: RunConfig, slot: int, *, weights: str, directory: Path, port: int | str, api_key: str) -> Command:
    """The inference server of a slot, starting with `weights`. With LoRA those are an adapter, or a whole model, which
    is then served without one."""
    cpu = accelerators.serves_on_cpu()
    model, adapter = weights, None
    if config.model.lora.rank:
        served = Path(weights) if adapters.is_adapter(Path(weights)) else idle_adapter(directory)
        model = config.model.path
        adapter = inference.StartAdapter(served, adapters.room_for(config.model.lora))
    return Command(
        inference.argv(model, port, config.inference, cpu=cpu, adapter=adapter),
        {
            **inference.environ(config.inference, cpu=cpu, api_key=api_key),
            **({} if cpu else accelerators.server_environ(slot, config.trainer.world_size)),
        },
    )


def trainer(config: RunConfig, *, run: str, url: str, token: str) -> Command:
    """The trainer of a run: what it trains, where it fetches it and with which right is in its environment."""
    world_size = config.trainer.world_size
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    return Command(
        [*argv, "-m", "trainers.rl" if config.kind == "rl" else "trainers.sft"],
        {
            **accelerators.trainer_environ(world_size, beside_servers=config.is_played),
            "ROLLYARD_URL": url,
            "ROLLYARD_TOKEN": token,
            "ROLLYARD_RUN": run,
        },
    )
