"""SAPO: a soft gate on the ratio in place of a clip (arXiv:2511.20347).

    r      = pi(t) / old(t)
    f(r)   = 4 / tau sigmoid(tau (r - 1)),  tau = tau_positive where A > 0, else tau_negative
    loss_t = -f(r) A

The slope of f is 1 at r = 1 and falls to both sides. Denominator: the rollout's tokens, then rollouts. Shapes: K
tokens.
"""

import torch

from trainers.losses.base import LossInputs, LossOutput
from trainers.run_config import SapoLoss


def sapo_loss(inputs: LossInputs, config: SapoLoss) -> LossOutput:
    """Metric: gate_slope, the share of the gradient that the gate lets through."""
    ratio_K = inputs.ratio
    tau_K = torch.full_like(ratio_K, config.tau_negative).masked_fill(inputs.advantages_K > 0, config.tau_positive)
    open_K = torch.sigmoid(tau_K * (ratio_K - 1))
    slope_K = (4 * open_K * (1 - open_K)).detach()
    return LossOutput(-4 / tau_K * open_K * inputs.advantages_K, {"gate_slope": slope_K})
