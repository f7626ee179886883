"""vLLM served, sampled from and published to, as the control plane does it; and how far it is from the trainer.

    start on version 0 -> sample -> train a few steps -> write version 1 -> load it -> sample

Mismatch KL is the mean over sampled tokens of r - log r - 1, r = trainer / engine: as a run reports it. The samples of
version 1 are scored with the weights of version 0 too, which shows that what was published is what is served.
"""

import asyncio
import os
import secrets
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.gpu.checkpoint import train
from benchmarks.gpu.setting import finish, model_in, options, sole_rank
from environments.client.address import SCHEME
from environments.config import SamplingParams
from environments.policy import Completion, OpenAIPolicy
from environments.types import Message
from trainers.distributed.mesh import World
from trainers.distributed.spread import SpreadTensors
from trainers.model.lora import adapter_tensors, write_adapter
from trainers.model.policy import DTYPES, load_policy, load_tokenizer, score_tokens
from trainers.optimizers.build import build_optimizer
from trainers.packing import pack, training_sequence
from trainers.run_config import InferenceConfig, LoraConfig, ModelConfig, OptimizerConfig
from trainers.storage.weights import spread_weights, write_weights
from workers.fleet import inference
from workers.fleet.adapters import room_for, write_idle_adapter
from workers.fleet.inference import InferenceError, StartAdapter, VllmAdmin
from workers.launchers.processes import end, with_descendants

_START_S = 420.0
_PROMPT = [Message("user", "Say something, and go on for as long as you like.")]
_LORA = LoraConfig(rank=16, alpha=32)


class Server(NamedTuple):
    """A server under way."""

    process: subprocess.Popen[bytes]
    url: str
    key: str
    start_s: float

    def sample(self, count: int, tokens: int) -> tuple[list[int], list[Completion], float]:
        """The prompt, what was sampled, and the seconds that took."""

        async def ask() -> tuple[list[int], list[Completion], float]:
            async with OpenAIPolicy(self.url, inference.SERVED_MODEL, api_key=self.key, timeout_s=240) as policy:
                prompt = await policy.render(_PROMPT)
                await policy.sample(prompt, 1, SamplingParams(max_tokens=8))  # kernels are made at the first request
                begin = time.perf_counter()
                found = await policy.sample(prompt, count, SamplingParams(max_tokens=tokens))
                return prompt, found, time.perf_counter() - begin

        return asyncio.run(ask())


def start(model: Path, config: InferenceConfig, log: Path, *, cpu: bool, adapter: StartAdapter | None) -> Server:
    """Start a server and wait until it has generated a token; without that, end with the last words of its log."""
    path = Path(tempfile.mkdtemp(prefix="rollyard-gpu-")) / "vllm.sock"
    key, began = secrets.token_hex(16), time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            inference.argv(str(model), path, config, cpu=cpu, adapter=adapter),
            env=os.environ | inference.environ(config, cpu=cpu, api_key=key),
            stdout=output,
            stderr=output,
        )
    url = f"{SCHEME}{path}"
    with VllmAdmin(url, key) as admin:
        while True:
            try:
                admin.probe(10)
                break
            except InferenceError as error:
                if process.poll() is not None or time.monotonic() - began > _START_S:
                    lines = log.read_text(errors="replace").splitlines()
                    print("\n".join([*[line for line in lines if "Error" in line][:30], "...", *lines[-20:]]))
                    finish({}, f"vLLM does not serve (exit status {process.poll()}): {error}")
                time.sleep(1)
        admin.set_version(0)
    return Server(process, url, key, time.monotonic() - began)


def mismatch_kl(
    model: PreTrainedModel, prompt: list[int], found: list[Completion], seq_len: int, world: World
) -> float:
    """Of what was sampled, under the weights that the trainer holds."""
    sequences = []
    for completion in found:
        ids = np.array(prompt + completion.token_ids)
        logprobs = np.array([0.0] * len(prompt) + completion.logprobs, np.float32)
        sequences.append(training_sequence(ids, np.arange(len(ids)) >= len(prompt), seq_len, logprobs))
    total, count = 0.0, 0
    for batch in pack(sequences, seq_len, 0, 1):
        moved = batch.to(world.device)
        with torch.no_grad():
            log_ratio_K = (score_tokens(model, moved, 1.0).logprobs_K - moved.inference_logprobs_K).double()
        total += float((log_ratio_K.exp() - log_ratio_K - 1).sum())
        count += len(log_ratio_K)
    return total / count


def main() -> None:
    asked = options("--lora")
    before = dict(os.environ)
    path, cpu, size = model_in(asked.work, asked.size), asked.device == "cpu", asked.size
    lora = _LORA if asked.lora else LoraConfig()
    config = ModelConfig(path=str(path), dtype=asked.dtype, lora=lora)
    room = {"max_model_len": 2048, "gpu_memory_utilization": 0.4, "kv_cache_gib": 0.25}
    # Further arguments reach it as those of any run.
    serving = InferenceConfig(dtype=asked.dtype, **room, max_num_seqs=64, arguments={"max-num-batched-tokens": 4096})
    adapter = None
    if asked.lora:
        write_idle_adapter(asked.work / "idle", lora)
        adapter = StartAdapter(asked.work / "idle", room_for(lora))
    server = start(path, serving, asked.work / "vllm.log", cpu=cpu, adapter=adapter)
    try:
        world = sole_rank(asked.device)
        model = load_policy(config, world)
        optimizer = build_optimizer(model, OptimizerConfig())
        count, tokens = (4, 32) if asked.small else (64, 512)
        figures: dict[str, float] = {"start_s": server.start_s}

        prompt, found, seconds = server.sample(count, tokens)
        figures["generated_tokens_per_s"] = sum(len(each.token_ids) for each in found) / seconds
        figures["mismatch_kl_start"] = mismatch_kl(model, prompt, found, size.tokens, world)

        train(model, optimizer, world, size.tokens // 8, 4, lr=3e-2 if asked.lora else 1e-3)  # an adapter starts at 0
        published = asked.work / ("adapter" if asked.lora else "weights")
        published.mkdir()
        begin = time.perf_counter()
        dtype = DTYPES[asked.dtype]
        if asked.lora:
            write_adapter(published, lora, str(path), SpreadTensors(adapter_tensors(model), world).whole(), dtype)
        else:
            write_weights(published, model, spread_weights(model, world, dtype), load_tokenizer(config), dtype)
        figures["write_s"] = time.perf_counter() - begin
        with VllmAdmin(server.url, server.key) as admin:
            figures["publish_pause_s"] = admin.load_weights(published, 1, deadline_s=180)
        prompt, found, _ = server.sample(count, tokens)
        versions = {each.first_policy_version for each in found} | {each.last_policy_version for each in found}
        figures["mismatch_kl_published"] = mismatch_kl(model, prompt, found, size.tokens, world)
        figures["mismatch_kl_of_version_0"] = mismatch_kl(load_policy(config, world), prompt, found, size.tokens, world)
        fault = ""
        if versions != {1}:
            fault = f"what was sampled after publishing is labelled {versions}"
        elif not figures["mismatch_kl_published"] < figures["mismatch_kl_of_version_0"] / 2:
            fault = "the server does not sample from the weights that were published"
    finally:
        os.environ.clear()
        os.environ |= before
        end(lambda: with_descendants({server.process.pid}) - _gone(server), 20, first=signal.SIGTERM)
    finish(figures, fault)


def _gone(server: Server) -> set[int]:
    return {server.process.pid} if server.process.poll() is not None else set()


if __name__ == "__main__":
    main()
