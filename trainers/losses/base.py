"""What a loss gets and returns. One loss per file in this package; each is a function of plain tensors.

A loss says what each token costs and divides by nothing. The weight of a token, one over a denominator of the **whole**
batch, comes from `objective/normalisers.py`; so the sum over micro-batches and ranks is the loss of the batch, however
it was split. A mean of local means would weigh a token by how crowded its micro-batch is.

Shapes: K tokens of one micro-batch that the policy sampled, S sequences of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

MAX_LOG_RATIO = 20.0
"""exp of more overflows float32 at 88, and infinity times a zero gradient is NaN. Ratios are those of the log ratio
clamped to this, so a token beyond it has no gradient through its ratio; it is hopeless anyway."""


@dataclass(frozen=True)
class LossInputs:
    """The tokens of one micro-batch that the policy sampled. A sequence is never split over micro-batches."""

    trainer_logprobs_K: torch.Tensor
    """float32, with gradient; log pi, of the policy being optimised."""
    inference_logprobs_K: torch.Tensor
    """float32; log mu, of the policy that sampled, as the inference engine reported them."""
    old_logprobs_K: torch.Tensor
    """float32; what ratios in the loss are against: `inference_logprobs_K`, or the trainer's at the start of the step
    (`algorithm.ratio_against`)."""
    advantages_K: torch.Tensor
    """float32."""
    ref_logprobs_K: torch.Tensor
    """float32; log pi_ref, of a reference or teacher. 0 where there are none."""
    sequence_K: torch.Tensor
    """int64; which of the S sequences a token belongs to."""
    sequences: int
    """S."""

    @property
    def log_ratio(self) -> torch.Tensor:
        """log r of every token, shape K, with gradient."""
        return self.trainer_logprobs_K - self.old_logprobs_K

    @property
    def ratio(self) -> torch.Tensor:
        """r = pi / old of every token, shape K, with gradient; finite whatever the logprobs."""
        return safe_exp(self.log_ratio)

    def sequence_sums(self, values_K: torch.Tensor) -> torch.Tensor:
        """Sum over the tokens of each sequence, shape S."""
        return values_K.new_zeros(self.sequences).index_add(0, self.sequence_K, values_K)

    def sequence_means(self, values_K: torch.Tensor) -> torch.Tensor:
        """Mean over the tokens of each sequence, shape S; 0 for a sequence without any."""
        return self.sequence_sums(values_K) / self.sequence_sums(torch.ones_like(values_K)).clamp(min=1)


@dataclass(frozen=True)
class LossOutput:
    """What each token costs."""

    losses_K: torch.Tensor
    """To minimise, with gradient; finite, because a weight of zero does not undo infinity."""
    metrics_K: dict[str, torch.Tensor] = field(default_factory=dict)
    """Without gradient; the caller takes the mean over the trained tokens of the batch."""
    ratio_K: torch.Tensor | None = None
    """The ratio that the loss bounds, if it is not `LossInputs.ratio`; for people who look at tokens."""
    penalties_K: torch.Tensor | None = None
    """Added to the losses after the corrections, with gradient: it stays on tokens that a correction drops."""


Loss = Callable[[LossInputs], LossOutput]


def safe_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp of a log ratio clamped to +-MAX_LOG_RATIO."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
