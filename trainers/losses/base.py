"""What a loss gets and returns. One loss per file in this package; each is a function of plain tensors.

A loss returns the *sum* over the tokens it is given, already divided by the denominator of the **whole** batch. So the
sum over micro-batches and ranks is the loss of the batch, however it was split; a mean of local means would weigh a
token by how crowded its micro-batch is.

Shapes: K trained tokens of one micro-batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LossInputs:
    """The trained tokens of one micro-batch."""

    trainer_logprobs_K: torch.Tensor
    """float32, with gradient; of the policy being optimised."""
    inference_logprobs_K: torch.Tensor
    """float32; of the policy that sampled, as the inference engine reported them."""
    advantages_K: torch.Tensor
    """float32."""
    denominator: float
    """Trained tokens of the batch over all micro-batches and ranks; at least 1."""


@dataclass(frozen=True)
class LossOutput:
    """Contribution of one micro-batch."""

    loss: torch.Tensor
    """Scalar to minimise."""
    metric_sums: dict[str, torch.Tensor]
    """Sums over the K tokens, without gradient; the caller divides by the trained tokens of the batch."""


Loss = Callable[[LossInputs], LossOutput]
