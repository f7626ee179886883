"""One vLLM server: its command line, its health probe, and loading weights while requests are in flight.

The admin routes carry no authentication (`VLLM_SERVER_DEV_MODE`), so a server listens on no port, only on a socket in a
directory that nobody else may enter. Its label
(`/weight_info`) is what rollouts are attributed by; vLLM notes it for every sampled token:

    a version number   the weights of that policy version
    "loading"          weights are being replaced, or that failed half way; the policy client refuses such answers
    anything else      nobody has said yet what the server was started with
"""

import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from environments.policy import LOADING_LABEL
from environments.servers import AnswerTooLarge, Server, ServerAnswer, ServerLost
from trainers.run_config import InferenceConfig, server_arguments
from workers.fleet.adapters import is_adapter

SERVED_MODEL = "policy"
"""Name under which every replica serves its model, whatever the weights."""

_FROZEN_MODEL = "frozen"
"""Name of the model beside which adapters are served as SERVED_MODEL. Nobody asks for it."""
_BOUND = "VLLM_CPU_OMP_THREADS_BIND"
_CALL_TIMEOUT_S = 10.0
_LONGEST_LOAD_S = 1800.0
"""Whatever size a trainer announced: a run that is stopped waits for it."""
_MAX_ANSWER_BYTES = 2**20
_MAX_DIGITS = 9
_COUNTED = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:generation_tokens_total",
)
_SAMPLE = r"(?m)^%s\{[^}\n]*\} ([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,3})?)$"
"""Of one engine, as Prometheus has it."""
_MOST_REQUESTS, _MOST_TOKENS = 2.0**31 - 1, 2.0**53
"""Whatever a server says, for it is stored."""
EXTENSION = Path(__file__).resolve().parent / "vllm_extension"
"""What of ours a server imports."""


class InferenceError(Exception):
    """An admin request to a server failed."""


class ReplicaUnreachable(InferenceError):
    """The server did not answer in time."""


class ReplicaRefused(InferenceError):
    """The server answered with an error."""


class WeightsNotBrought(InferenceError):
    """What a server is to load did not come to its node. Neither of the two is at fault."""


class WeightsNotLoaded(InferenceError):
    """The server does not hold the weights it was told to load; it answers nothing until it does."""


class StartAdapter(NamedTuple):
    """The adapter that a server of a LoRA run starts with."""

    path: Path
    max_rank: int
    """Of this adapter and all that replace it."""


class EngineLoad(NamedTuple):
    """What a server is busy with."""

    running: int
    """Requests."""
    waiting: int
    """Requests that have no room yet."""
    cache_share: float
    """Of its KV cache, in use: 0 to 1."""
    tokens: int
    """Generated since it began."""


def argv(
    model: str,
    socket: Path | str,
    config: InferenceConfig,
    *,
    cpu: bool,
    adapter: StartAdapter | None = None,
    frozen: bool = False,
    python: str = sys.executable,
) -> list[str]:
    """Return the command line of a server; it needs `environ` too, which also holds the secrets.

    A `frozen` one is asked over its chat route. `python` is the interpreter that has vLLM.
    """
    command = [python, "-m", "rollyard_server"]
    command += ["--model", model, "--served-model-name", _FROZEN_MODEL if adapter else SERVED_MODEL]
    if adapter:
        command += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(adapter.max_rank)]
        command += ["--lora-modules", f"{SERVED_MODEL}={adapter.path}"]
    command += ["--uds", str(socket)]
    command += ["--dtype", config.dtype, "--max-model-len", str(config.max_model_len)]
    # The distribution the token was drawn from, after temperature: what importance ratios need.
    command += ["--logprobs-mode", "processed_logprobs"]
    # Token-in, token-out routes: later turns are exact, answers say which weights sampled each token.
    command += ["--enable-scale-out"]
    command += ["--worker-extension-cls", "rollyard_vllm.WeightLoading"]
    command += ["--disable-uvicorn-access-log"]
    if frozen:
        # Nothing but what is asked for shapes its replies, as with the policy: no top_k that the model's files suggest.
        command += ["--generation-config", "vllm"]
    if cpu:
        command += ["--enforce-eager", "--kv-cache-memory-bytes", str(int(config.kv_cache_gib * 2**30))]
    else:
        command += ["--gpu-memory-utilization", str(config.gpu_memory_utilization)]
    if config.devices > 1:
        command += ["--tensor-parallel-size", str(config.tensor_parallel)]
        command += ["--pipeline-parallel-size", str(config.pipeline_parallel)]
        command += ["--data-parallel-size", str(config.data_parallel)]
        command += ["--distributed-executor-backend", "mp"]  # never Ray, which would listen to whoever reaches the node
    elif cpu:
        # The engine and its only worker in one process: ten seconds less to start, and no busy-waiting between two.
        command += ["--distributed-executor-backend", "uni"]
    if config.max_num_seqs:
        command += ["--max-num-seqs", str(config.max_num_seqs)]
    if config.quantization:
        command += ["--quantization", config.quantization]
    if not config.prefix_caching:
        command += ["--no-enable-prefix-caching"]
    return [*command, *server_arguments.words(config.arguments)]


def environ(
    config: InferenceConfig, *, cpu: bool, api_key: str | None = None, servers: int = 1, cores: int | None = None
) -> dict[str, str]:
    """Return the variables that one of so many servers of a run needs on top of the process's own. `cores`: which it
    has to itself; None: the run is on this machine."""
    inherited = os.environ.get("PYTHONPATH")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(EXTENSION), *([inherited] if inherited else [])]),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # It counts what it is busy with, which it is asked for; its log would have a line of that every ten seconds.
        "VLLM_LOG_STATS_INTERVAL": "600",
        "DO_NOT_TRACK": "1",
    }
    if api_key is not None:
        variables["VLLM_API_KEY"] = api_key
    if cpu:
        threads = max(1, (_threads(servers) if cores is None else cores) // config.devices)
        # The first lets the CPU platform accept the "uni" executor; the API server keeps its own process all the same.
        # The second leaves several processes where the machine puts them: vLLM knows how to bind one to each NUMA node.
        placed = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if config.devices == 1 else {_BOUND: "nobind"}
        variables |= placed | {
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",  # a trainer may want the core that a waiting thread would spin on
            # Without it the first request waits about 15 s for a small kernel to be compiled.
            "TORCHDYNAMO_DISABLE": "1",
        }
    return variables


def _threads(servers: int) -> int:
    """Half the cores for all servers together: the rest is for trainers, API servers and everything else."""
    return max(1, (os.cpu_count() or 1) // 2 // servers)


class VllmAdmin:
    """Client of a server's admin routes; `base_url` is its socket's, or ends in `/v1` or not. Not thread-safe; raises
    `InferenceError`."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        # A loop, for only that can end a request whose answer goes on and on.
        self._loop = asyncio.Runner()
        self._server = Server(base_url, api_key=api_key, keeps_connections=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._loop.run(self._server.aclose())
        self._loop.close()

    def probe(self, deadline_s: float) -> float:
        """Generate one token, which is the only proof that a server works. Returns the seconds it took."""
        began = time.monotonic()
        body = {"model": SERVED_MODEL, "token_ids": [0], "sampling_params": {"max_tokens": 1, "temperature": 0}}
        answer = self._call("POST", "/inference/v1/generate", deadline_s, body=body)
        try:
            sampled = len(answer["choices"][0]["token_ids"])
        except (KeyError, IndexError, TypeError) as exc:
            raise ReplicaRefused(f"The probe's answer has no tokens: {list(answer)!r:.200}") from exc
        if sampled != 1:
            raise ReplicaRefused(f"The probe asked for one token and got {sampled}.")
        return time.monotonic() - began

    def version(self) -> int | None:
        """Return the policy version the server is labelled with; None: it has no such label."""
        label = self._label(_CALL_TIMEOUT_S)
        return int(label) if label.isdecimal() and len(label) <= _MAX_DIGITS else None

    def set_version(self, version: int) -> None:
        """Label the weights the server already holds, as after its start."""
        self._set_label(str(version), _CALL_TIMEOUT_S)

    def is_paused(self) -> bool:
        """Whether the server is paused: it accepts requests and generates nothing."""
        return bool(self._call("GET", "/is_paused", _CALL_TIMEOUT_S).get("is_paused"))

    def resume(self) -> None:
        """End a pause. Idempotent."""
        self._call("POST", "/resume", _CALL_TIMEOUT_S)

    def load(self, deadline_s: float) -> EngineLoad:
        """Return what the server is busy with, as it counts itself."""
        told = self._ask("GET", "/metrics", deadline_s).body.decode(errors="replace")
        counted = [re.findall(_SAMPLE % re.escape(name), told) for name in _COUNTED]
        if not all(counted):
            raise ReplicaRefused("/metrics does not say what the engine is busy with.")
        engines = len(counted[0])
        most = (_MOST_REQUESTS, _MOST_REQUESTS, float(engines), _MOST_TOKENS)
        running, waiting, share, tokens = (
            min(limit, sum(map(float, each))) for limit, each in zip(most, counted, strict=True)
        )
        return EngineLoad(int(running), int(waiting), share / engines, int(tokens))

    def load_weights(self, path: Path, version: int, *, deadline_s: float = 120.0) -> float:
        """Replace the weights by those of `version` in `path` and go on with the requests in flight.

        An adapter replaces that of a server which was started with one; nothing else of it moves.

        `deadline_s` is for the loading alone: all else is quick, and who does not answer it must keep no other waiting.
        Returns the seconds generation stood still. Safe to repeat, also after the caller died at any line: the server
        is labelled `loading` until the new weights are in. Raises `WeightsNotLoaded` when they are not; the server
        then stays paused, because vLLM dies of the next request with half of its weights. Load any complete version,
        or restart it.
        """
        method = "load_policy_adapter" if is_adapter(path) else "load_policy_weights"
        described = is_adapter(path) or (path / "config.json").is_file()
        if not described or not any(path.glob("*.safetensors")):
            raise WeightsNotLoaded(f"{path} holds no model: config.json and *.safetensors are expected.")
        began = time.monotonic()
        self._call("POST", "/pause", _CALL_TIMEOUT_S, query={"mode": "keep"})
        self._set_label(LOADING_LABEL, _CALL_TIMEOUT_S)
        try:
            reload = {"method": method, "kwargs": {"path": str(path.resolve())}}
            self._call("POST", "/collective_rpc", min(deadline_s, _LONGEST_LOAD_S), body=reload)
            # Keys and values of the old weights must not serve the new ones. Requests in flight are put back and their
            # tokens so far computed again: blocks they hold would otherwise survive the reset.
            again = {"reset_running_requests": "true"}
            reset = self._call("POST", "/reset_prefix_cache", _CALL_TIMEOUT_S, query=again)
            if reset.get("success") is not True:
                raise ReplicaRefused(f"The prefix cache was not emptied: {list(reset)!r:.200}")
            self._set_label(str(version), _CALL_TIMEOUT_S)
        except InferenceError as exc:
            raise WeightsNotLoaded(f"Version {version} from {path}: {exc}") from exc
        self.resume()
        return time.monotonic() - began

    def _label(self, timeout_s: float) -> str:
        label = self._call("GET", "/weight_info", timeout_s).get("weight_version")
        return label if isinstance(label, str) else ""

    def _set_label(self, label: str, timeout_s: float) -> None:
        self._call("POST", "/update_weight_version", timeout_s, body={"new_version": label})
        if (found := self._label(timeout_s)) != label:
            raise ReplicaRefused(f"The server was labelled {label!r} but says {found!r:.100}.")

    def _call(
        self, method: str, path: str, timeout_s: float, *, body: Any = None, query: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Ask for JSON; all requests are idempotent. Raises ReplicaUnreachable or ReplicaRefused."""
        found = self._ask(method, path, timeout_s, body=body, query=query)
        try:
            answer = json.loads(found.body or b"{}")
        except (ValueError, RecursionError) as exc:
            raise ReplicaRefused(f"{path} did not answer with JSON: {found.text[:100]}") from exc
        if not isinstance(answer, dict):
            raise ReplicaRefused(f"{path} answered {found.text[:100]}, not an object.")
        return answer

    def _ask(
        self, method: str, path: str, timeout_s: float, *, body: Any = None, query: dict[str, str] | None = None
    ) -> ServerAnswer:
        asking = self._server.ask(
            method,
            path,
            deadline_s=timeout_s,
            most_bytes=_MAX_ANSWER_BYTES,
            body=None if body is None else json.dumps(body).encode(),
            query=query,
        )
        try:
            found = self._loop.run(asking)
        except AnswerTooLarge as exc:
            raise ReplicaRefused(str(exc)) from exc
        except (TimeoutError, ServerLost) as exc:
            raise ReplicaUnreachable(f"{path} within {timeout_s:.1f} s: {type(exc).__name__}: {exc}") from exc
        if found.status != 200:
            raise ReplicaRefused(f"{path} answered {found.status}: {found.text[:300]}")
        return found
