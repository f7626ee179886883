"""Which arguments of vLLM a run may add to those of its servers.

The attacker is a person who may launch in one project. An argument can have a server import a module, open a port, read
a file or send what it sees elsewhere; the sandbox holds most of that, and nobody needs to try. So there are those that
only tune, which anybody may use; those that are every server's own, which nobody may; and the rest, each of which an
administrator allows by name.
"""

import re
from collections.abc import Iterable

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
"""No dots: `a.b` reaches into another argument."""

_LONGEST = 1000
Value = bool | int | float | str

TUNING = frozenset(
    (
        *("all2all-backend", "async-scheduling", "attention-backend", "block-size", "cpu-offload-gb"),
        *("disable-cascade-attn", "disable-custom-all-reduce", "enable-chunked-prefill", "enable-expert-parallel"),
        *("enforce-eager", "fully-sharded-loras", "kv-cache-dtype", "kv-cache-memory-bytes", "linear-backend"),
        *("long-prefill-token-threshold", "max-cudagraph-capture-size", "max-num-batched-tokens"),
        *("max-num-scheduled-tokens", "max-parallel-loading-workers", "moe-backend", "num-gpu-blocks-override"),
        *("optimization-level", "performance-mode", "scheduling-policy", "seed", "stream-interval"),
    )
)
"""Speed and memory, and nothing else."""

OURS = {
    "model": "model.path",
    "dtype": "inference.dtype",
    "max-model-len": "inference.max_model_len",
    "gpu-memory-utilization": "inference.gpu_memory_utilization",
    "tensor-parallel-size": "inference.tensor_parallel",
    "pipeline-parallel-size": "inference.pipeline_parallel",
    "data-parallel-size": "inference.data_parallel",
    "max-num-seqs": "inference.max_num_seqs",
    "quantization": "inference.quantization",
    "enable-prefix-caching": "inference.prefix_caching",
    "trust-remote-code": "model.trust_remote_code",
    "enable-lora": "model.lora.rank",
    "max-lora-rank": "model.lora.rank",
    **dict.fromkeys(
        (
            *("api-key", "api-server-count", "config", "data-parallel-address", "disable-log-stats"),
            *("disable-uvicorn-access-log", "distributed-executor-backend", "enable-scale-out", "generation-config"),
            *("grpc", "headless", "host", "logprobs-mode", "lora-modules", "master-addr", "max-loras", "nnodes"),
            *("port", "root-path", "served-model-name", "uds", "worker-cls", "worker-extension-cls"),
        ),
        "",
    ),
}
"""What every server is started with, and the key of a run's config that says it, where one does."""


def complaint(name: str, value: Value = "") -> str:
    """Why no run may use an argument, whoever allows it; empty when one may."""
    if isinstance(value, str) and (len(value) > _LONGEST or (value and not value.isprintable())):
        return f"the value of {name!r:.100} is not one line of at most {_LONGEST} characters"
    if not _NAME.fullmatch(name):
        return f"{name!r:.100} is no argument of vLLM: write block-size, without dashes before it"
    if name in OURS:
        return f"{name} is set for every server" + (f": use {OURS[name]}" if OURS[name] else "")
    # As vLLM reads a name that is cut short.
    if meant := next((each for each in OURS if each.startswith(name)), None):
        return f"{name} is short for {meant}, which is set for every server: write the whole name of what is meant"
    return ""


def to_be_allowed(names: Iterable[str]) -> list[str]:
    """Those of which an administrator has to allow each."""
    return [name for name in names if name not in TUNING]


def words(arguments: dict[str, Value]) -> list[str]:
    """One word of the command line for each: a value that begins with a dash stays a value."""
    return [
        (f"--{name}" if value else f"--no-{name}") if isinstance(value, bool) else f"--{name}={value}"
        for name, value in arguments.items()
    ]
