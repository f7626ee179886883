"""CISPO: the clipped ratio is a constant weight, so that no token loses its gradient (arXiv:2506.13585).

    r      = pi(t) / old(t)
    loss_t = -sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi(t)

The lower bound is not used in practice (clip_low 1); an upper bound of 4 to 6 is that of arXiv:2510.13786.
Denominator: all trained tokens of the batch. Shapes: K tokens.
"""

from trainers.losses.base import LossInputs, LossOutput
from trainers.run_config import CispoLoss


def cispo_loss(inputs: LossInputs, config: CispoLoss) -> LossOutput:
    """Metric: clip_fraction, tokens whose weight is at a bound."""
    ratio_K = inputs.ratio.detach()
    weight_K = ratio_K.clamp(1 - config.clip_low, 1 + config.clip_high)
    return LossOutput(
        -weight_K * inputs.advantages_K * inputs.trainer_logprobs_K, {"clip_fraction": (weight_K != ratio_K).float()}
    )
