"""The processes that a run is made of, as commands: a pure function of its config, of paths and of this machine's GPUs.

`serving` and `training` start them, `rollyard launch --dry-run` prints them. Needs neither Django nor a database.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from environments.client.address import address
from environments.unconfined import is_unconfined
from trainers.run_config import RunConfig
from trainers.run_config.data import dataset_name
from workers.fleet import accelerators, adapters, hub, inference
from workers.launchers.base import JobSize

_IDLE_ADAPTER = "idle_adapter"
_NICE = 100
"""Of servers: a trainer that waits has the next free node, for without it they work for nothing."""


class Slot(NamedTuple):
    """Where a run wants an inference server."""

    policy: str
    """Which of its `[[policies]]` is served there; empty: the policy of the run."""
    number: int

    @property
    def name(self) -> str:
        """Such as `inference-0`, or `inference-judge-0`."""
        return "-".join(filter(None, ("inference", self.policy, str(self.number))))


class Command(NamedTuple):
    """What to start, and what it needs. Secrets are in the variables only."""

    argv: list[str]
    environ: dict[str, str]
    """On top of the launcher's own."""
    reads: list[Path]
    """What it may read besides programs: what the run was given, and what it made."""
    writes: list[Path]
    cores: Sequence[int] = ()
    """Of this machine, those on which it computes; empty: any."""


def start_weights(config: RunConfig, policy: str = "") -> str:
    """What policy version 0 of a run is, or one of its `[[policies]]` for good: a directory by its absolute path, or a
    name of a model hub."""
    frozen = next((ref for ref in config.frozen.values() if ref.name == policy), None)
    return config.model.lora.path or config.model.path if frozen is None or frozen.is_start else frozen.model


def slots(config: RunConfig) -> list[Slot]:
    """Every inference server that a run wants, in the order in which they get GPUs: those of its own policy first."""
    return [
        *(Slot("", number) for number in range(config.inference.replicas)),
        *(Slot(ref.name, number) for ref in config.frozen.values() for number in range(ref.replicas)),
    ]


def idle_adapter(directory: Path) -> Path:
    """Where a server of a LoRA run finds an adapter that changes nothing, in its own directory."""
    return directory / _IDLE_ADAPTER


def is_on_jobs(config: RunConfig) -> bool:
    """Whether the processes of a run are jobs, somewhere else than here."""
    return config.launcher.type != "local"


def gpus_wanted(config: RunConfig) -> int:
    """One for each process of a run that computes on a GPU of this machine where there is one."""
    if is_on_jobs(config):
        return 0
    return gpus_of_trainer(config) + _servers(config) * gpus_of_a_server(config)


def cores_wanted(config: RunConfig) -> int:
    """Those of this machine that a run asks to have for itself; one that does not ask shares with all others."""
    if is_on_jobs(config):
        return 0
    trainer = config.launcher.trainer.cores if config.is_trained else 0
    return trainer + _servers(config) * config.launcher.inference.cores


def memory_wanted(config: RunConfig) -> int:
    """The GiB of this machine's memory that a run asks to have for itself, of all of its processes together."""
    if is_on_jobs(config):
        return 0
    trainer = config.launcher.trainer.memory_gib if config.is_trained else 0
    return math.ceil(trainer + _servers(config) * config.launcher.inference.memory_gib)


def _servers(config: RunConfig) -> int:
    """How many there will be: of a run that nobody here plays none is started."""
    return len(slots(config)) if config.is_played else 0


def own_cores(config: RunConfig, held: Sequence[str], slot: Slot | None = None) -> list[int]:
    """Which of the cores that a run has are those of the server of a slot, or, without, of its trainer."""
    of_trainer, each = config.launcher.trainer.cores if config.is_trained else 0, config.launcher.inference.cores
    first = of_trainer + slots(config).index(slot) * each if slot else 0
    return [int(core) for core in held[first : first + (each if slot else of_trainer)]]


def gpus_of_trainer(config: RunConfig) -> int:
    """One for each of its processes, which share none."""
    return config.trainer.world_size if config.is_trained and config.trainer.device != "cpu" else 0


def gpus_of_a_server(config: RunConfig) -> int:
    """They are of one node, and no two processes of a server share one."""
    return 0 if accelerators.serves_on_cpu(elsewhere=is_on_jobs(config)) else config.inference.devices


def need(config: RunConfig, kind: str) -> JobSize:
    """What the job of a replica of this kind asks for."""
    if kind == "trainer":
        nodes = config.trainer.nodes
        return JobSize(**config.launcher.trainer.model_dump(), gpus=gpus_of_trainer(config) // nodes, nodes=nodes)
    return JobSize(**config.launcher.inference.model_dump(), gpus=gpus_of_a_server(config), nice=_NICE)


def server(
    config: RunConfig,
    slot: Slot,
    *,
    weights: str,
    directory: Path,
    socket: Path,
    caches: Path,
    api_key: str,
    gpus: Sequence[str],
    held: Sequence[str] = (),
    cores: int | None = None,
) -> Command:
    """The inference server of a slot, starting with `weights`. With LoRA those are an adapter, or a whole model, which
    is then served without one. `directory` is its own, in that of its run; `caches` its project's; `gpus` and the cores
    that are `held` its run's; `cores` those of its job."""
    own = own_cores(config, held, slot)
    elsewhere, everywhere = is_on_jobs(config), slots(config)
    cpu = accelerators.serves_on_cpu(elsewhere=elsewhere)
    model, adapter = _model_of(config, slot, weights, directory)
    return Command(
        [
            *inference.argv(model, socket, config.inference, cpu=cpu, adapter=adapter, frozen=bool(slot.policy)),
            *(["--trust-remote-code"] if config.model.trust_remote_code else []),
        ],
        {
            **inference.environ(
                config.inference, cpu=cpu, api_key=api_key, servers=len(everywhere), cores=len(own) or cores
            ),
            **accelerators.server_environ(
                everywhere.index(slot),
                () if cpu else gpus,
                gpus_of_trainer(config),
                config.inference.devices,
                elsewhere=elsewhere,
            ),
            # Kept: a GPU server without it takes ten seconds longer to start. Not shared: what one leaves, others run.
            "VLLM_CACHE_ROOT": str(caches / "vllm"),
            "HF_HUB_CACHE": str(hub.cache()),
        },
        reads=[
            inference.EXTENSION,
            # What it will be told to load, which a frozen one never is.
            *([] if slot.policy else [idle_adapter(directory), weights_of(directory.parents[1])]),
            *hub.places(weights, "model"),
            *hub.places(model, "model"),
        ],
        writes=[socket.parent, caches],
        cores=own,
    )


def _model_of(
    config: RunConfig, slot: Slot, weights: str, directory: Path
) -> tuple[str, inference.StartAdapter | None]:
    """The model that a server loads, and the adapter on it."""
    lora, is_adapter = config.model.lora, adapters.is_adapter(Path(weights))
    if not lora.rank or (slot.policy and weights != lora.path):
        return weights, None
    served = Path(weights) if is_adapter else idle_adapter(directory)
    return config.model.path, inference.StartAdapter(served, adapters.room_for(lora))


def trainer(
    config: RunConfig,
    *,
    run: str,
    directory: Path,
    url: str,
    token: str,
    gpus: Sequence[str],
    held: Sequence[str] = (),
    resumes_from: str = "",
    cores: int | None = None,
) -> Command:
    """The trainer of a run: what it trains, where it fetches it and with which right is in its environment.

    `directory`, `gpus` and the cores that are `held` are the run's; `resumes_from` is the checkpoint of another run
    whose optimizer state it starts with; `cores` are those of its job on each node.
    """
    own = own_cores(config, held)
    nodes = config.trainer.nodes
    world_size = config.trainer.world_size // nodes
    kind = "rl" if config.kind == "rl" else "sft"
    return Command(
        [sys.executable, "-m", *(_ranks(kind, world_size) if nodes == 1 else _node(kind, nodes, world_size))],
        {
            **accelerators.trainer_environ(
                world_size,
                gpus[: gpus_of_trainer(config)],
                beside_servers=config.is_played,
                cores=len(own) or cores,
                elsewhere=is_on_jobs(config),
            ),
            "ROLLYARD_URL": url,
            "ROLLYARD_TOKEN": token,
            "ROLLYARD_RUN": run,
            "HF_HUB_CACHE": str(hub.cache()),
        },
        reads=_given_to_trainer(config, directory, url, resumes_from),
        writes=[
            weights_of(directory),
            *(directory / name for name in ("checkpoints", "data", "tracking")),
        ],
        cores=own,
    )


def _node(kind: str, nodes: int, ranks: int) -> list[str]:
    """The module that starts a trainer's ranks on each of several nodes; the node's agent says which it is, and where
    they meet."""
    return ["trainers.distributed.node", kind, "--nodes", str(nodes), "--ranks", str(ranks)]


def _ranks(kind: str, world_size: int) -> list[str]:
    """The module that starts a trainer's ranks, with its arguments."""
    if not is_unconfined():
        return ["torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size), "-m", f"trainers.{kind}"]
    # Outside of a sandbox torchrun's stores, which unpickle what they are sent, would listen to whoever reaches this
    # machine. The file is made where the replica starts, in a directory that no other start has.
    place = ["--nodes", "1", "--node", "0", "--ranks", str(world_size)]
    return ["trainers.distributed.node", kind, *place, "--meeting", "meeting", "--interface", "lo"]


def _given_to_trainer(config: RunConfig, directory: Path, url: str, resumes_from: str) -> list[Path]:
    given = [*hub.places(config.model.path, "model"), *hub.places(config.model.lora.path, "model")]
    if config.data is not None:
        given += _data_of(config.data.path, directory)
        if config.data.validation is not None:
            given += _data_of(config.data.validation.path, directory)
    _, socket = address(url)
    return [*given, *([Path(socket).parent] if socket else []), *([Path(resumes_from)] if resumes_from else [])]


def _data_of(path: str, directory: Path) -> list[Path]:
    """What has to be readable for a trainer that learns from `path`."""
    version = dataset_name(path)
    return hub.places(path, "dataset") if version is None else [directory / "datasets" / version]


def weights_of(run_directory: Path) -> Path:
    """Where the policy versions of a run lie."""
    return run_directory / "weights"
