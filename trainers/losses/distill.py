"""On-policy distillation: the teacher grades every token that the student sampled.

    A_t    = log pi_ref(t) - sg(log pi(t))
    c_t    = sg(min(pi(t) / old(t), delta)), or 1 without a ratio
    loss_t = -c_t A_t log pi(t)

The gradient is that of the reverse KL divergence KL(pi || pi_ref), estimated on samples; A_t is a constant, and the
value of the loss means nothing, its metric does. Source: reverse KL per token as an advantage, as in GKD
(arXiv:2306.13649) with the gradient of a policy; the ratio corrects for lag. Denominator: as the loss it stands for or
beside. Shapes: K tokens.
"""

import torch

from trainers.losses.base import LossInputs, LossOutput
from trainers.run_config import DistillLoss


def distill_loss(inputs: LossInputs, config: DistillLoss) -> LossOutput:
    """Metric: distillation_kl, log pi - log pi_ref."""
    return distillation_losses(inputs, config.delta if config.ratio == "token" else None)


def distillation_losses(inputs: LossInputs, delta: float | None = 8.0) -> LossOutput:
    """The same as a term beside another loss; no ratio when `delta` is None."""
    logprobs_K = inputs.trainer_logprobs_K
    with torch.no_grad():
        gap_K = logprobs_K - inputs.ref_logprobs_K
        factor_K = 1.0 if delta is None else inputs.ratio.clamp(max=delta)
        coefficient_K = factor_K * gap_K
    return LossOutput(coefficient_K * logprobs_K, {"distillation_kl": gap_K})
