"""DPPO with KL: a trust region of probabilities (arXiv:2602.04879), and a squared log ratio (arXiv:2602.02276).

    r      = pi(t) / mu(t)
    loss_t = -keep_t r A + kl_tau (log r)^2
    keep_t = 0 where A > 0  and pi(t) - mu(t) >  mask_high
                  or A <= 0 and pi(t) - mu(t) < -mask_low,  else 1

The mask compares probabilities of the sampled token, not logs, and is a constant: a rare token may move by a large
ratio, a likely one may not move far. The squared log ratio is on every trained token: on those that the mask drops, and
on those of rollouts that a correction drops, because it is what pulls a policy back that has moved too far.
Denominator: all trained tokens of the batch, dropped ones too. Shapes: K tokens.
"""

import torch

from trainers.losses.base import LossInputs, LossOutput
from trainers.run_config import DppoLoss


def dppo_loss(inputs: LossInputs, config: DppoLoss) -> LossOutput:
    """Metric: clip_fraction, tokens that are dropped."""
    with torch.no_grad():
        difference_K = inputs.trainer_logprobs_K.exp() - inputs.inference_logprobs_K.exp()
        risen_K, fallen_K = difference_K > config.mask_high, difference_K < -config.mask_low
        dropped_K = torch.where(inputs.advantages_K > 0, risen_K, fallen_K)
    policy_K = torch.where(dropped_K, 0.0, -inputs.ratio * inputs.advantages_K)
    return LossOutput(
        policy_K,
        {"clip_fraction": dropped_K.float()},
        penalties_K=config.kl_tau * inputs.log_ratio.square(),
    )
