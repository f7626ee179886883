"""What RL and SFT training share: the model with its optimizer, one optimizer step, and what is left on disk.

    Learner(...)       load model.path, or the newest checkpoint that verifies
    .train_step(...)   micro-batches -> loss -> gradient -> optimizer; returns metrics
    .publish(n)        weights/step_n on disk, then known to the control plane
    .checkpoint(n)     checkpoints/step_n on disk, then known to the control plane

The order in a loop is train_step, publish, ack, checkpoint. An acknowledged step therefore always has its policy
version, and a checkpoint never lies ahead of the acknowledged steps: whoever resumes from it repeats steps, never skips
one.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainers import wire
from trainers.client import ControlPlane
from trainers.distributed.apart import make_on_other_nodes
from trainers.distributed.mesh import World, seed_step
from trainers.distributed.spread import SpreadTensors
from trainers.errors import Diverged
from trainers.hub import pinned
from trainers.link import RunLink
from trainers.metrics.throughput import FlopCounter, peak_flops, peak_memory_gib
from trainers.metrics.token_values import TokenWatch
from trainers.model.lm_head import TokenScores
from trainers.model.lora import adapter_tensors, write_adapter
from trainers.model.pipeline import forward_backward, share_gradient
from trainers.model.policy import DTYPES, load_policy, load_tokenizer
from trainers.objective.step import Objective
from trainers.optimizers.build import build_optimizer, learning_rate, optimizer_step
from trainers.packing import MicroBatch, TrainingSequence, count_trained, micro_batch, pack
from trainers.run_config import RunConfig
from trainers.storage.checkpoint import load_checkpoint, load_optimizer, newest_verified, write_checkpoint
from trainers.storage.durable import (
    CompleteDirectory,
    find_directory,
    hash_and_seal,
    open_partial,
    partial_directory,
    seal_partial,
    sweep_partials,
    verify_directory,
)
from trainers.storage.weights import gather_weights, save_weights, spread_weights

_log = logging.getLogger(__name__)


class Learner:
    """The policy in training. Methods are collective: every rank calls each of them."""

    def __init__(self, config: RunConfig, registration: wire.TrainerRegistration, link: RunLink, world: World) -> None:
        self.config = config
        self._registration = registration
        self._link = link
        self._world = world
        self._weights = Path(registration.run_dir) / "weights"
        self._checkpoints = Path(registration.run_dir) / "checkpoints"
        self.start = pinned(config.model, Path(registration.run_dir) / "data")
        """Where the run starts from, also when it goes on from a checkpoint."""
        self.tokenizer = load_tokenizer(self.start)
        torch.manual_seed(config.seed)  # a fresh LoRA adapter is random, and the same on every rank
        is_imitating = config.kind == "sft" and (config.data is None or config.data.preference is None)
        served = None if config.kind == "sft" else config.inference.max_model_len
        self.model = load_policy(self.start, world, config.trainer, dropout=is_imitating, longest=served)
        self.dtype = DTYPES[config.model.dtype]
        """What the model computes in; its parameters are float32."""
        self._flops = FlopCounter(self.model) if world.stages == 1 else None
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self._times: dict[str, float] = {}
        if world.is_main:
            # Whole directories are the control plane's to delete: only it knows what is live or waits to go live.
            sweep_partials(self._weights, epoch=registration.epoch)
            sweep_partials(self._checkpoints, epoch=registration.epoch)
        self.step = self._resume()
        """Optimizer steps behind the weights; also the number of the next step."""

    def train_step(
        self,
        sequences: Sequence[TrainingSequence],
        objective: Objective,
        temperature: float = 1.0,
        watch: TokenWatch | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step on `sequences`, which every rank holds whole; returns the metrics of the step.

        `watch` is shown every micro-batch. Raises Diverged, before the weights move, on a mean that is not finite.
        """
        config, world, begin = self.config, self._world, time.perf_counter()
        seed_step(config.seed, self.step, world.stage * world.data_size + world.data_rank)
        with self.timed("load"):
            micro_batches = pack(objective.prepare(sequences), config.trainer.seq_len, world.data_rank, world.data_size)
        parts: dict[str, torch.Tensor] = {}
        token_sums: dict[str, torch.Tensor] = {}

        def evaluate(batch: MicroBatch, scores: TokenScores) -> torch.Tensor:
            evaluated = objective(batch, scores.logprobs_K)
            if watch is not None:
                watch.record(batch, scores, evaluated)
            _add(parts, evaluated.parts)
            entropy = scores.entropy_K[: batch.trained_tokens].sum()
            _add(token_sums, evaluated.metric_sums | {"entropy": entropy})
            # FSDP averages gradients over ranks, but the weights already count the tokens of all of them.
            return evaluated.loss * world.data_size

        with self.timed("forward_backward"):
            forward_backward(self.model, micro_batches, temperature, evaluate, world, self.dtype)
            if not world.is_last_stage:  # the sums of nothing have the names of all the others
                nothing = torch.zeros(0, device=world.device)
                evaluate(micro_batch([]).to(world.device), TokenScores(nothing, nothing))
            means = self._sum_over_ranks(parts, 1) | self._sum_over_ranks(token_sums, max(1, count_trained(sequences)))
        if wrong := [f"{name} is {mean}" for name, mean in means.items() if not math.isfinite(mean)]:
            fix = "lower optimizer.lr, or look at the loss and the rewards of this batch"
            raise Diverged(f"{', '.join(wrong)}: {fix}")
        lr = learning_rate(config.optimizer, self.step, config.max_steps)
        with self.timed("optimizer"):
            counted_elsewhere = share_gradient(self.model, world)
            stages, limit = world.stage_group, config.optimizer.max_grad_norm
            grad_norm = optimizer_step(self.model, self.optimizer, lr, limit, stages, counted_elsewhere)
            if world.device.type == "cuda":
                torch.cuda.synchronize(world.device)  # or what is still queued would count as the next phase's
        self.step += 1
        return means | {
            "optim/grad_norm": grad_norm,
            "optim/lr": lr,
            "batch/tokens": float(sum(len(sequence.token_ids_T) for sequence in sequences)),
            "batch/sequences": float(len(sequences)),
            **self._utilisation(sequences, time.perf_counter() - begin),
        }

    def publish(self) -> None:
        """Write the weights as policy version `step` and announce them.

        A repeated step leaves its version as it is: replicas may have loaded it, rollouts name it. One that the control
        plane knew when this trainer came may be gone from the disk, by age or with the node that wrote it.
        """
        if self._link.is_over():
            return
        with self.timed("publish"):
            done = self._write_weights()
        self._announce(
            done, lambda plane, files: plane.announce_policy_version(wire.PolicyVersionIn(version=self.step, **files))
        )

    def checkpoint(self) -> None:
        """Write everything needed to go on from here, and announce it."""
        with self.timed("checkpoint"):
            done = self._write_checkpoint()
        self._announce(done, lambda plane, files: plane.announce_checkpoint(wire.CheckpointIn(step=self.step, **files)))

    def take_times(self) -> dict[str, float]:
        """Seconds per phase since the last call, as `time/<phase>` metrics."""
        times = {f"time/{name}": seconds for name, seconds in self._times.items()}
        self._times = {}
        return times

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time inside the block to a phase."""
        begin = time.perf_counter()
        yield
        self._times[name] = self._times.get(name, 0.0) + time.perf_counter() - begin

    def _announce(self, done: CompleteDirectory | None, tell: Callable[[ControlPlane, dict[str, Any]], None]) -> None:
        """Tell of what rank 0 has, if it has something: the answer may have to wait until all of it was fetched."""

        def announce(plane: ControlPlane) -> None:
            if done is not None:
                files = {"path": str(done.path), "manifest_sha256": done.manifest_sha256, "size_bytes": done.size_bytes}
                tell(plane, files)

        self._link.do_on_main(lambda: self._link.send(announce))

    def _resume(self) -> int:
        run, checkpoints = self._registration.run, self._registration.checkpoints
        chosen = self._link.do_on_main(lambda: newest_verified(run, checkpoints))
        index = self._link.broadcast(-1 if chosen is None else checkpoints.index(chosen))
        if index < 0:
            _log.info("starting from %s", self.config.model.path)
            self._inherit_optimizer()
            return 0
        _log.info("resuming from checkpoint %s", checkpoints[index].path)
        load_checkpoint(Path(checkpoints[index].path), self.model, self.optimizer)
        return checkpoints[index].step

    def _inherit_optimizer(self) -> None:
        """Take the optimizer's state from the checkpoint that the run was forked from, if it was launched so."""
        if (source := self._registration.optimizer_from) is not None:
            # Nobody reads what does not verify: no rank gets past this then.
            self._link.do_on_main(lambda: verify_directory(Path(source.path), source.manifest_sha256))
            load_optimizer(Path(source.path), self.model, self.optimizer)

    def _sum_over_ranks(self, sums: dict[str, torch.Tensor], denominator: int) -> dict[str, float]:
        totals = torch.stack([value.double() for value in sums.values()])
        dist.all_reduce(totals)
        means = totals / denominator / self._world.scorers  # which have added the same sums
        return {f"{name}/mean": value for name, value in zip(sums, means.tolist(), strict=True)}

    def _utilisation(self, sequences: Sequence[TrainingSequence], seconds: float) -> dict[str, float]:
        """Of a step: share of the peak FLOP/s, where that is known, and the largest peak memory of a rank."""
        memory = torch.tensor(peak_memory_gib(self._world.device))
        dist.all_reduce(memory, op=dist.ReduceOp.MAX)
        metrics = {"perf/peak_memory_gib": float(memory)}
        peak = peak_flops(self._world.device, self.config.trainer.peak_tflops)
        if peak is not None and self._flops is not None and self._flops.is_exact:
            flops = self._flops.of_step([len(s.token_ids_T) for s in sequences], count_trained(sequences))
            metrics["perf/mfu"] = flops / seconds / peak / self._world.size
        return metrics

    def _write_weights(self) -> CompleteDirectory | None:
        """Every rank gives its share, rank 0 writes; returns what is to be announced there, None on the others."""
        parent, epoch, lora = self._weights, self._registration.epoch, self.config.model.lora
        if self.step <= self._registration.newest_version:
            return None
        existing = self._link.do_on_main(lambda: find_directory(parent, self.step))
        if self._link.broadcast(int(existing is not None)):
            return existing
        tensors = (
            SpreadTensors(adapter_tensors(self.model), self._world)
            if lora.rank
            else spread_weights(self.model, self._world, self.dtype)
        )
        partial, whole = partial_directory(parent, self.step, epoch=epoch), None
        if not self._world.is_main:
            tensors.give()
        else:
            open_partial(parent, self.step, epoch=epoch)
            whole = tensors.whole() if lora.rank else gather_weights(partial, self.model, tensors)

        def finish() -> CompleteDirectory:
            if lora.rank and whole is not None:
                write_adapter(partial, lora, self.config.model.path, whole, self.dtype)
            else:
                save_weights(partial, self.model, whole, self.tokenizer, self.dtype)
            return hash_and_seal(partial, epoch=epoch, run=self._registration.run)

        return self._link.do_on_main(finish)

    def _write_checkpoint(self) -> CompleteDirectory | None:
        """Every rank writes its part, rank 0 makes it durable; returns the directory there, None on the others."""
        parent, epoch = self._checkpoints, self._registration.epoch
        existing = self._link.do_on_main(lambda: find_directory(parent, self.step))
        if existing is None and self._world.is_main:
            open_partial(parent, self.step, epoch=epoch)
        if self._link.broadcast(int(existing is not None)):
            return existing
        partial = partial_directory(parent, self.step, epoch=epoch)
        make_on_other_nodes(partial)
        digests = write_checkpoint(partial, self.step, self.model, self.optimizer)
        if not self._world.is_main:
            return None
        return seal_partial(partial, digests, epoch=epoch, run=self._registration.run)


def _add(sums: dict[str, torch.Tensor], values: dict[str, torch.Tensor]) -> None:
    for name, value in values.items():
        sums[name] = sums[name] + value if name in sums else value
