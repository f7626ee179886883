"""The training processes: their optimizer, how the model is spread over them, what they leave on disk."""

from typing import Annotated, Literal

from pydantic import Field

from trainers.run_config.section import Section


class OptimizerConfig(Section):
    """The optimizer and its schedule."""

    kind: Literal["adamw", "sgd", "muon"] = "adamw"
    """`adamw`; `sgd` with momentum; `muon` orthogonalises the update of every hidden matrix and leaves embeddings,
    output layer and norms to AdamW, at the same rate."""
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
        return []


class TrainerConfig(Section):
    """The training processes and what they leave on disk."""

    world_size: int = Field(default=1, ge=1)
    """Training processes on the node; model, gradients and optimizer are sharded over them."""
    seq_len: int = Field(default=2048, ge=8)
    """Tokens in one packed micro-batch. Longer rollouts are cut to it."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept on disk."""
    keep_weights: int = Field(default=4, ge=1)
    """Superseded policy versions kept on disk, besides the live one and those that wait to go live."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; `auto` takes CUDA when there is any."""
    fp32_lm_head: bool = True
    """Compute logits in float32 even where `model.dtype` is bfloat16: logprobs closer to exact, at some speed."""
