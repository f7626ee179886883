"""Masked importance sampling, IcePop: tokens seen too differently by engine and trainer are dropped (arXiv:2510.18855).

    r      = pi(t) / mu(t)
    loss_t = -r A  where ratio_low <= r <= ratio_high, else 0

The mask is a constant. Denominator: all trained tokens of the batch, dropped ones too. Shapes: K tokens.
"""

import torch

from trainers.losses.base import LossInputs, LossOutput
from trainers.run_config import MaskedIsLoss


def masked_is_loss(inputs: LossInputs, config: MaskedIsLoss) -> LossOutput:
    """Metric: clip_fraction, tokens that are dropped."""
    ratio_K = inputs.ratio
    kept_K = ((ratio_K >= config.ratio_low) & (ratio_K <= config.ratio_high)).detach()
    losses_K = torch.where(kept_K, -ratio_K * inputs.advantages_K, 0.0)
    return LossOutput(losses_K, {"clip_fraction": (~kept_K).float()})
