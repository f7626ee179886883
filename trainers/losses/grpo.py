"""GRPO's clipped policy gradient, and its variants DAPO and Dr. GRPO, which differ in their defaults.

    r      = pi(t) / old(t)
    loss_t = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

             paper               clip       advantage                 denominator
    grpo     arXiv:2402.03300    .2 / .2    (R - mean) / deviation    the rollout's tokens, then rollouts
    dapo     arXiv:2503.14476    .2 / .28   (R - mean) / deviation    all tokens of the batch
    dr_grpo  arXiv:2503.20783    .2 / .2    R - mean                  a constant length, then rollouts

The KL term of the GRPO paper is `algorithm.terms.reference_kl`. There is one optimizer step per batch, so with
`algorithm.ratio_against = "inference"` the ratio corrects for both the lag of the rollout and the numerical difference
between engine and trainer. Shapes: K tokens.
"""

import torch

from trainers.losses.base import LossInputs, LossOutput
from trainers.run_config import DapoLoss, DrGrpoLoss, GrpoLoss


def grpo_loss(inputs: LossInputs, config: GrpoLoss | DapoLoss | DrGrpoLoss) -> LossOutput:
    """Metric: clip_fraction, tokens whose gradient the clip removes."""
    return clipped_loss(inputs.ratio, inputs.advantages_K, config.clip_low, config.clip_high)


def clipped_loss(ratio_K: torch.Tensor, advantages_K: torch.Tensor, low: float, high: float) -> LossOutput:
    """PPO's pessimistic clip (Eq. 7 of arXiv:1707.06347) of any kind of ratio."""
    unclipped_loss_K = -ratio_K * advantages_K
    clipped_loss_K = -ratio_K.clamp(1 - low, 1 + high) * advantages_K
    return LossOutput(
        torch.maximum(unclipped_loss_K, clipped_loss_K),
        {"clip_fraction": (clipped_loss_K > unclipped_loss_K).float()},
        ratio_K,
    )
