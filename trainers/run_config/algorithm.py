"""Advantages, objective, and how far training may run ahead of generation."""

from typing import Literal

from pydantic import Field

from trainers.run_config.section import Section


class GrpoLoss(Section):
    """Clipped policy gradient (arXiv:2402.03300) against the inference engine's logprobs."""

    type: Literal["grpo"] = "grpo"
    """Name of the loss."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below at one minus this."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio is clipped above at one plus this."""
    normaliser: Literal["token"] = "token"
    """What the summed loss is divided by: `token` is every trained token of the batch, over all ranks."""


class AlgorithmConfig(Section):
    """Advantages, loss, and how far training may run ahead of generation."""

    loss: GrpoLoss = GrpoLoss()
    """The objective."""
    advantage: Literal["mean_std", "mean"] = "mean_std"
    """`mean_std` centres rewards per group and divides by their deviation; `mean` only centres them."""
    std_epsilon: float = Field(default=1e-6, ge=0)
    """Added to the deviation before dividing."""
    max_off_policy_steps: int = Field(default=8, ge=0)
    """Groups whose oldest token is more steps old than this are dropped as stale."""
    max_async_level: int = Field(default=2, ge=0)
    """Steps that generation may run ahead of the live policy version. 0 is fully synchronous."""
    strict_async_level: bool = False
    """Publish new weights only between groups, so that every batch has exactly the lag of the async level."""
    filter_zero_advantage: bool = False
    """Drop groups whose rewards are all equal; they carry no gradient."""
