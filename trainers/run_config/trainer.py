"""The training processes: their optimizer, how the model is spread over them, what they leave on disk."""

from typing import Annotated, Literal

from pydantic import Field

from trainers.run_config.section import Section


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-5, gt=0)
    """Peak learning rate."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay of the first and second moments."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay, on matrices only."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up from zero."""
    schedule: Literal["constant", "linear"] = "constant"
    """After warm-up: keep the rate, or let it fall linearly to zero at `max_steps`."""


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
