"""The training processes: their optimizer, how the model is spread over them, what they leave on disk."""

import math
from typing import Annotated, Literal

from pydantic import Field

from trainers.run_config.section import Section


class OptimizerConfig(Section):
    """The optimizer and its schedule."""

    kind: Literal["adamw", "sgd", "muon"] = "adamw"
    """`adamw`; `sgd` with momentum; `muon` orthogonalises the update of every linear layer and leaves embeddings,
    output layer, norms and the experts of mixtures (a layer's are one tensor) to AdamW, at the same rate."""
    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay of AdamW's first and second moments."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of AdamW's second moment."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of SGD and Muon."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay, on matrices only; decoupled from the gradient except with SGD."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up from zero."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After warm-up: keep the rate, or let it fall by a line or by half a cosine until `max_steps`."""
    decay_steps: int | None = Field(default=None, ge=1)
    """Last steps of the run in which the rate falls, after a plateau at the peak (warm-up, stable, decay). Empty: all
    steps after the warm-up."""
    lr_floor: float = Field(default=0.0, ge=0, le=1)
    """Share of the peak rate that the decay ends at."""

    def problems(self, max_steps: int) -> list[tuple[str, str]]:
        """Dotted keys that contradict each other or the length of the run, with the fix."""
        fix = f"or raise max_steps ({max_steps})."
        if self.schedule != "constant" and self.warmup_steps >= max_steps:
            reason = f"leaves no step for the {self.schedule} decay"
            return [("optimizer.warmup_steps", f"{reason}. Lower it {fix}")]
        if self.schedule != "constant" and self.warmup_steps + (self.decay_steps or 0) > max_steps:
            reason = f"{self.decay_steps} does not fit behind optimizer.warmup_steps ({self.warmup_steps})"
            return [("optimizer.decay_steps", f"{reason}. Lower one {fix}")]
        if self.schedule == "constant" and (self.decay_steps is not None or self.lr_floor):
            key = "decay_steps" if self.decay_steps is not None else "lr_floor"
            fix = "Set that to 'linear' or 'cosine', or remove this."
            return [(f"optimizer.{key}", f"is of a rate that falls, and optimizer.schedule is 'constant'. {fix}")]
        return []


class TrainerConfig(Section):
    """The training processes and what they leave on disk."""

    world_size: int = Field(default=1, ge=1)
    """Training processes; model, gradients and optimizer are sharded over them."""
    nodes: int = Field(default=1, ge=1)
    """Nodes over which the processes are spread, as many on each. More than one only where they are jobs
    (`launcher.type = "slurm"`)."""
    replicas: int = Field(default=1, ge=1)
    """Copies of the sharded model (HSDP), each over its share of the processes; they exchange gradients only. One per
    node or fast network is a good number."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Processes that every layer's heads and widths are split over. For models whose layers are too large for one
    device; inside one node."""
    context_parallel: int = Field(default=1, ge=1)
    """Processes that the tokens of every micro-batch are split over. For sequences too long for one device."""
    pipeline_parallel: int = Field(default=1, ge=1)
    """Experimental. Stages that the decoder's layers are split into, of which every process has one. For models too
    large for fast sharding; a step needs several micro-batches for each stage, see `seq_len`, or stages are idle."""
    activation_checkpointing: bool = False
    """Keep only the inputs of each layer and compute the rest again in the backward pass: much less memory, about a
    quarter slower."""
    activation_offload: bool = False
    """Experimental. Move what activation checkpointing keeps to main memory until the backward pass: less memory for
    long micro-batches, slower. No gain on CPU."""
    cpu_offload: bool = False
    """Experimental. Keep parameters, gradients and optimizer state in main memory and step there; slow. No gain on
    CPU."""
    compile: bool = False
    """Compile every layer with torch.compile: faster steps after a slow first one."""
    seq_len: int = Field(default=2048, ge=8)
    """Tokens in one packed micro-batch. Longer rollouts are cut to it."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept on disk."""
    keep_every: int = Field(default=0, ge=0)
    """Checkpoints of every so many steps are kept besides the newest; 0: none is."""
    keep_weights: int = Field(default=4, ge=1)
    """Superseded policy versions kept on disk, besides the live one and those that wait to go live."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; `auto` takes CUDA when there is any."""
    fp32_lm_head: bool = True
    """Keep the output layer and its logits in float32 even where `model.dtype` is bfloat16: logprobs closer to exact.
    On CUDA what is multiplied for them is rounded to 10 bits (TensorFloat-32), where bfloat16 has 7."""
    peak_tflops: float | None = Field(default=None, gt=0)
    """Peak TFLOP/s of one device, what `perf/mfu` is a share of. Empty: by the name of the GPU, where it is known."""

    def problems(self) -> list[tuple[str, str]]:
        """Dotted keys that contradict each other, with the fix."""
        names = ("pipeline_parallel", "replicas", "tensor_parallel", "context_parallel")
        parts = {name: getattr(self, name) for name in names}
        together = math.prod(parts.values())
        beside = [name for name in ("tensor_parallel", "context_parallel") if parts[name] > 1]
        beside += ["cpu_offload"] * self.cpu_offload
        if self.pipeline_parallel > 1 and beside:
            reason = f"{self.pipeline_parallel} stages do not go with trainer.{beside[0]}"
            fix = f"Set it to 1 and leave the processes to sharding, or leave trainer.{beside[0]} out."
            return [("trainer.pipeline_parallel", f"{reason}. {fix}")]
        if self.world_size % together:
            product = " x ".join(f"trainer.{name} ({size})" for name, size in parts.items() if size > 1)
            reason = f"{self.world_size} is not a multiple of {product}"
            fix = f"Use {together * -(-self.world_size // together)}, or lower a factor."
            return [("trainer.world_size", f"{reason}. {fix}")]
        if self.world_size % self.nodes:
            fix = f"Use {self.nodes * -(-self.world_size // self.nodes)}."
            wrong = f"{self.world_size} processes are not as many on each of trainer.nodes ({self.nodes})"
            return [("trainer.world_size", f"{wrong}. {fix}")]
        if self.activation_offload and not self.activation_checkpointing:
            fix = "Set trainer.activation_checkpointing too, or leave it out."
            return [("trainer.activation_offload", f"moves what activation checkpointing keeps. {fix}")]
        if self.seq_len % self.context_parallel:
            fix = f"Use {self.seq_len // self.context_parallel * self.context_parallel}."
            return [("trainer.seq_len", f"is not a multiple of trainer.context_parallel. {fix}")]
        return []
