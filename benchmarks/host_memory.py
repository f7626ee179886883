"""How much main memory does a rank need to load a model and to publish it? At its peak, over what it keeps: its shard.

    python -m benchmarks.host_memory [--ranks 2] [--rounds 3] [--layers 14] [--width 2048] [--vocabulary 151936]
                                     [--set trainer.tensor_parallel=2]

Makes a random Qwen3 in bfloat16 (2 GB at the default size, in one file) and starts real ranks on CPU: the trainer's own
`Learner` loads it and publishes policy version 0, with nobody to announce it to. Parameters are float32 there, so a
shard is twice the model through the number of ranks. Gradients and optimizer state do not exist yet.

Peaks are above what a rank has once everything is imported and the ranks have met. `anonymous` is memory that cannot be
given back (RssAnon + RssShmem), looked at every 5 ms from outside; `resident` is the kernel's own peak (VmHWM), in
which pages of mapped files count too, which the kernel takes back whenever it needs them. `limit` is 0.75 of the model
on disk plus the shard. The last line has the SHA-256 of the published weights: the same before and after a change that
only saves memory.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.trainer_load.ours import FreshRun
from benchmarks.wire_load import machine
from benchmarks.wire_load.figures import Figures, report, table
from trainers import wire
from trainers.client import ControlPlane
from trainers.config import resolve
from trainers.distributed.mesh import make_world, run_rank
from trainers.learner import Learner
from trainers.model.tiny import tiny_tokenizer
from trainers.storage.durable import MANIFEST

HEAD_WIDTH = 128
PHASES = ("loading", "publishing")
_LOOK_EVERY_S = 0.005


class Unheard(FreshRun):
    """A run without a control plane, to which announcements can be made all the same."""

    def send(self, request: Callable[[ControlPlane], object]) -> None:
        if torch.distributed.get_rank() == 0:
            request(self)  # type: ignore[arg-type]

    def announce_policy_version(self, version: wire.PolicyVersionIn) -> None:
        """What the control plane would be told."""

    def is_over(self) -> bool:
        return False


class Watch:
    """Largest anonymous memory of each rank in each phase, as seen from outside while the block runs."""

    def __init__(self, directory: Path) -> None:
        self.peaks: dict[tuple[str, str], int] = {}
        """Bytes, by rank and phase."""
        self._directory = directory
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            for mark in self._directory.glob("mark-*"):
                pid, _, phase = mark.read_text().partition(" ")
                try:
                    held = anonymous_bytes(pid)
                except (FileNotFoundError, ProcessLookupError):
                    continue
                key = (mark.name.removeprefix("mark-"), phase)
                self.peaks[key] = max(self.peaks.get(key, 0), held)


def anonymous_bytes(pid: str = "self") -> int:
    """Memory of a process that only swapping could free."""
    status = _status(pid)
    return status.get("RssAnon", 0) + status.get("RssShmem", 0)  # one that has ended has neither


def _status(pid: str = "self") -> dict[str, int]:
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[-1] == "kB"}


def write_model(directory: Path, width: int, layers: int, vocabulary: int) -> int:
    """A random Qwen3 in bfloat16 with tied embeddings, made in a mapped file; returns its parameters."""
    tokenizer = tiny_tokenizer()
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD_WIDTH,
        num_key_value_heads=width // HEAD_WIDTH // 2,
        head_dim=HEAD_WIDTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
    )
    directory.mkdir()
    config.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in Qwen3ForCausalLM(config).named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    mapped = directory / "mapped"
    flat = torch.from_file(str(mapped), shared=True, size=sum(sizes), dtype=torch.bfloat16)
    flat.normal_(std=0.02, generator=torch.Generator().manual_seed(0))
    parts = zip(shapes, flat.split(sizes), strict=True)
    tensors = {name: part.view(shapes[name]) for name, part in parts}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    mapped.unlink()
    return sum(sizes)


def be_rank(directory: Path, overrides: list[str]) -> None:
    """Load and publish; leave a mark for whoever watches, and in the end what this rank knows of itself."""
    chosen = {
        "max_steps": 1,
        "model": {"path": str(directory / "model"), "dtype": "bfloat16"},
        "environments": [{"name": "reverse_text"}],
        "trainer": {"device": "cpu", "world_size": torch.distributed.get_world_size()},
    }
    config = resolve(inline=chosen, overrides=overrides).config
    world = make_world(config.trainer)
    registration = wire.TrainerRegistration(run="benchmark", epoch=1, config={}, run_dir=str(directory), checkpoints=[])
    torch.distributed.barrier()
    begin = _status()
    found: dict[str, Any] = {"anonymous": anonymous_bytes()}
    learner: Learner | None = None
    for phase in PHASES:
        torch.distributed.barrier()
        _mark(directory, world.rank, phase)
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        began = time.perf_counter()
        if learner is None:
            learner = Learner(config, registration, Unheard(), world)
        else:
            learner.publish()
        found[phase] = {"resident": _status()["VmHWM"] - begin["VmRSS"], "s": time.perf_counter() - began}
        _mark(directory, world.rank, "between")
    (directory / f"found-{world.rank}.json").write_text(json.dumps(found))


def _mark(directory: Path, rank: int, phase: str) -> None:
    new = directory / f"new-mark-{rank}"
    new.write_text(f"{os.getpid()} {phase}")
    new.rename(directory / f"mark-{rank}")


def measure(directory: Path, ranks: int, overrides: list[str]) -> tuple[Figures, str]:
    """The figures of one start, each of the rank that needs most, and the SHA-256 of what was published."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "benchmarks.host_memory", "--rank", str(directory)]
    command += [word for each in overrides for word in ("--set", each)]
    with Watch(directory) as watch:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"a rank failed:\n{done.stdout}{done.stderr}")
    found = [json.loads((directory / f"found-{rank}.json").read_text()) for rank in range(ranks)]
    figures: Figures = {}
    for phase in PHASES:
        peaks = [watch.peaks[str(rank), phase] - found[rank]["anonymous"] for rank in range(ranks)]
        figures[f"{phase}_anonymous_gb"] = max(peaks) / 1e9
        figures[f"{phase}_resident_gb"] = max(each[phase]["resident"] for each in found) / 1e9
        figures[f"{phase}_s"] = max(each[phase]["s"] for each in found)
    manifest = json.loads((directory / "weights" / "step_0" / MANIFEST).read_text())
    published = {entry["name"]: entry["sha256"] for entry in manifest["files"]}
    shutil.rmtree(directory / "weights")
    return figures, published["model.safetensors"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--width", type=int, default=2048, help=f"a multiple of {2 * HEAD_WIDTH}")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="run config; repeat for more")
    parser.add_argument("--directory", type=Path, help="for model and weights, on the disk; a temporary one")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(lambda: be_rank(options.rank, options.set))
        return
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        count = write_model(directory / "model", options.width, options.layers, options.vocabulary)
        model_gb, shard_gb = 2 * count / 1e9, 4 * count / options.ranks / 1e9
        print(f"model {model_gb:.2f} GB, shard {shard_gb:.2f} GB, limit {0.75 * model_gb + shard_gb:.2f} GB")
        rounds, hashes = [], set()
        for index in range(options.rounds):
            figures, sha256 = measure(directory, options.ranks, options.set)
            rounds.append(figures)
            hashes.add(sha256)
            shown = ", ".join(f"{key} {value:.2f}" for key, value in figures.items())
            print(f"round {index + 1} of {options.rounds}: {shown}", file=sys.stderr)
    found = report({"ranks": rounds})
    print("\n".join(table(found)))
    print(json.dumps({"machine": machine.facts(), "published_sha256": sorted(hashes), "figures": found}))


if __name__ == "__main__":
    main()
