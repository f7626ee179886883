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

    @property
    def gradient_without_advantage(self) -> str:
        """The key, below `algorithm`, that gives a token whose advantage is 0 a gradient; empty: it has none.

        A loss that multiplies the advantage by something has none: every clip, gate and weight of it leaves 0 at 0.
        """
        return "" if self.uses_advantages else "loss.type"

    normaliser: Normaliser = "token"


class AipoLoss(LossSection):
    """Importance-weighted policy gradient with an upper bound on the ratio (arXiv:2505.24034)."""

    type: Literal["aipo"] = "aipo"
    """Name of the loss."""
    delta: Clip = 8.0
    """Upper bound of the ratio."""
    bound: Literal["clamp", "truncate"] = "clamp"
    """`clamp` differentiates through the bound, so a token above it has no gradient; `truncate` weighs the gradient of
    its logprob by the bounded ratio, so none is lost."""


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


class GspoLoss(LossSection):
    """Clipped policy gradient on the length-normalised ratio of the whole rollout (arXiv:2507.18071)."""

    default_advantage: ClassVar[AdvantageMethod] = "mean_std"
    takes_token_advantages: ClassVar[bool] = False

    type: Literal["gspo"] = "gspo"
    """Name of the loss."""
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """The ratio is clipped below at one minus this."""
    clip_high: Clip = 4e-4
    """The ratio is clipped above at one plus this."""
    normaliser: Normaliser = "sequence_mean"


class GspoTokenLoss(LossSection):
    """GSPO whose gradient flows per token, so that advantages may differ inside a rollout (arXiv:2507.18071)."""

    default_advantage: ClassVar[AdvantageMethod] = "mean_std"

    type: Literal["gspo_token"] = "gspo_token"
    """Name of the loss."""
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """The ratio is clipped below at one minus this."""
    clip_high: Clip = 4e-4
    """The ratio is clipped above at one plus this."""
    normaliser: Normaliser = "sequence_mean"


class OpoLoss(LossSection):
    """Policy gradient with the length-weighted baseline (arXiv:2505.23585); the ratio corrects for lag."""

    default_advantage: ClassVar[AdvantageMethod] = "length_weighted"

    type: Literal["opo"] = "opo"
    """Name of the loss."""
    delta: Clip = 8.0
    """Upper bound of the ratio."""
    bound: Literal["clamp", "truncate"] = "clamp"
    """What happens above it, as in `aipo`."""


class RlooLoss(LossSection):
    """Policy gradient of whole rollouts against the mean of the others (arXiv:2402.14740); the ratio corrects for
    lag."""

    default_advantage: ClassVar[AdvantageMethod] = "leave_one_out"

    type: Literal["rloo"] = "rloo"
    """Name of the loss."""
    delta: Clip = 8.0
    """Upper bound of the ratio."""
    bound: Literal["clamp", "truncate"] = "clamp"
    """What happens above it, as in `aipo`."""
    normaliser: Normaliser = "sequence_sum"


class CispoLoss(LossSection):
    """Policy gradient weighted by the clipped ratio: no token loses its gradient (arXiv:2506.13585)."""

    default_advantage: ClassVar[AdvantageMethod] = "mean_std"

    type: Literal["cispo"] = "cispo"
    """Name of the loss."""
    clip_low: float = Field(default=1.0, gt=0, le=1)
    """The weight is at least one minus this; 1 is no lower bound."""
    clip_high: Clip = 4.0
    """The weight is at most one plus this."""


class MaskedIsLoss(LossSection):
    """Importance-weighted policy gradient that drops tokens whose ratio is out of bounds (IcePop, arXiv:2510.18855)."""

    is_bounded_by_engine: ClassVar[bool] = True

    type: Literal["masked_is"] = "masked_is"
    """Name of the loss."""
    ratio_low: float = Field(default=0.125, ge=0, lt=1)
    """Tokens with a lower ratio are dropped."""
    ratio_high: float = Field(default=8.0, gt=1)
    """Tokens with a higher ratio are dropped."""


class DppoLoss(LossSection):
    """Importance-weighted policy gradient inside a trust region of probabilities, with a penalty on the squared log
    ratio (arXiv:2602.04879, arXiv:2602.02276)."""

    is_bounded_by_engine: ClassVar[bool] = True

    type: Literal["dppo"] = "dppo"
    """Name of the loss."""
    mask_low: float = Field(default=0.2, gt=0, le=1)
    """A token to be made less likely is dropped once its probability has fallen by more than this."""
    mask_high: float = Field(default=0.2, gt=0, le=1)
    """A token to be made more likely is dropped once its probability has risen by more than this."""
    kl_tau: float = Field(default=1e-3, ge=0)
    """Weight of the squared log ratio, on every token that the policy sampled: neither the mask nor a correction takes
    it away."""

    @property
    def gradient_without_advantage(self) -> str:
        return "loss.kl_tau" if self.kl_tau else ""


class SapoLoss(LossSection):
    """Policy gradient through a soft gate on the ratio instead of a clip (arXiv:2511.20347)."""

    default_advantage: ClassVar[AdvantageMethod] = "mean_std"

    type: Literal["sapo"] = "sapo"
    """Name of the loss."""
    tau_positive: Clip = 1.0
    """How fast the gate closes where the advantage is positive."""
    tau_negative: Clip = 1.05
    """How fast it closes elsewhere."""
    normaliser: Normaliser = "sequence_mean"


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
    """A function of your own that the trainer can import; an administrator has to allow it by its path."""

    type: Literal["custom"] = "custom"
    """Name of the loss."""
    path: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")
    """Dotted path of the function, such as `my_package.losses.my_loss`: from `LossInputs` to `LossOutput`
    (`trainers/losses/base.py`)."""
    args: dict[str, Any] = {}
    """Keyword arguments for it."""
    needs_reference: bool = False
    """Refuse rollouts without reference logprobs."""

    @property
    def gradient_without_advantage(self) -> str:
        return "loss.type"  # nobody but its author knows


LossConfig = Annotated[
    AipoLoss
    | GrpoLoss
    | DapoLoss
    | DrGrpoLoss
    | GspoLoss
    | GspoTokenLoss
    | OpoLoss
    | RlooLoss
    | CispoLoss
    | MaskedIsLoss
    | DppoLoss
    | SapoLoss
    | DistillLoss
    | CrossEntropyLoss
    | CustomLoss,
    Field(discriminator="type"),
]
