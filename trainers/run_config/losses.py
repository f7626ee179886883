"""The objectives a run can have: one class per loss, with the advantage and the normaliser it is meant to go with.

Formulas are in `trainers/losses/<type>.py`; what to choose when is in docs/objectives.md.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trainers.run_config.section import Section

AdvantageMethod = Literal["mean_std", "mean", "leave_one_out", "length_weighted", "max_rl", "none"]
Normaliser = Annotated[
    Literal["token", "sequence_mean", "sequence_sum", "group", "constant"],
    Field(
        description="What a token's loss is divided by, counted over the whole batch. `token`: all trained tokens. "
        "`sequence_mean`: the rollout's own trained tokens, then the rollouts. `sequence_sum`: the rollouts only. "
        "`group`: the trained tokens of its group, then the groups. `constant`: a fixed length, then the rollouts."
    ),
]

Clip = Annotated[float, Field(gt=0)]


class LossSection(Section):
    """Base of every loss: what the rest of the config has to know about it."""

    default_advantage: ClassVar[AdvantageMethod] = "mean"
    uses_advantages: ClassVar[bool] = True
    is_bounded_by_engine: ClassVar[bool] = False
    """Its bounds compare with the inference engine's logprobs, so the ratio must be against those too."""
    takes_token_advantages: ClassVar[bool] = True

    normaliser: Normaliser = "token"


class GrpoLoss(LossSection):
    """Clipped policy gradient, a mean over each rollout (arXiv:2402.03300)."""

    default_advantage: ClassVar[AdvantageMethod] = "mean_std"

    type: Literal["grpo"] = "grpo"
    """Name of the loss."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below at one minus this."""
    clip_high: Clip = 0.2
    """The ratio is clipped above at one plus this."""
    normaliser: Normaliser = "sequence_mean"


class DapoLoss(LossSection):
    """GRPO with a wider upper clip and a mean over all tokens (arXiv:2503.14476)."""

    default_advantage: ClassVar[AdvantageMethod] = "mean_std"

    type: Literal["dapo"] = "dapo"
    """Name of the loss."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below at one minus this."""
    clip_high: Clip = 0.28
    """The ratio is clipped above at one plus this."""


class DrGrpoLoss(LossSection):
    """GRPO without the biases of deviation and length: centred rewards, a constant normaliser (arXiv:2503.20783)."""

    type: Literal["dr_grpo"] = "dr_grpo"
    """Name of the loss."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below at one minus this."""
    clip_high: Clip = 0.2
    """The ratio is clipped above at one plus this."""
    normaliser: Normaliser = "constant"


class DistillLoss(LossSection):
    """On-policy distillation: bring the policy's own tokens closer to the reference logprobs that came with them."""

    default_advantage: ClassVar[AdvantageMethod] = "none"
    uses_advantages: ClassVar[bool] = False

    type: Literal["distill"] = "distill"
    """Name of the loss."""
    ratio: Literal["token", "none"] = "token"
    """`token` weighs a token by its ratio, up to `delta`, to correct for lag; `none` does not."""
    delta: Clip = 8.0
    """Upper bound of the ratio."""


class CrossEntropyLoss(LossSection):
    """Imitate the rollouts: every trained token is an example, whatever its reward."""

    default_advantage: ClassVar[AdvantageMethod] = "none"
    uses_advantages: ClassVar[bool] = False

    type: Literal["cross_entropy"] = "cross_entropy"
    """Name of the loss."""


class CustomLoss(LossSection):
    """A function of your own that the trainer can import. It runs with the trainer's rights."""

    type: Literal["custom"] = "custom"
    """Name of the loss."""
    path: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    """Dotted path of the function, such as `my_package.losses.my_loss`: from `LossInputs` to `LossOutput`
    (`trainers/losses/base.py`)."""
    args: dict[str, Any] = {}
    """Keyword arguments for it."""
    needs_reference: bool = False
    """Refuse rollouts without reference logprobs."""


LossConfig = Annotated[
    GrpoLoss | DapoLoss | DrGrpoLoss | DistillLoss | CrossEntropyLoss | CustomLoss,
    Field(discriminator="type"),
]
