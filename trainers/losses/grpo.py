"""GRPO's clipped policy gradient (Eq. 3 of arXiv:2402.03300), without the KL term to a reference model.

    r = pi(t) / mu(t)                            pi: policy being optimised, mu: what the inference engine reported
    loss = -1/N sum over tokens of min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

Denominator N: all trained tokens of the batch, over micro-batches and ranks (token mean), so long and short rollouts
weigh by their tokens. There is one optimizer step per batch and mu is also the old policy: the ratio corrects for both
the lag of the rollout and the numerical difference between engine and trainer.
"""

import torch

from trainers.losses.base import LossInputs, LossOutput
from trainers.run_config import GrpoLoss

_MAX_LOG_RATIO = 20.0
"""exp of more overflows float32 at 88, and infinity times a zero gradient is NaN. Such a token is hopeless anyway."""


def grpo_loss(inputs: LossInputs, config: GrpoLoss) -> LossOutput:
    """Sum of the clipped objective. Metrics: clip_fraction (tokens whose gradient the clip removes), mismatch_kl."""
    log_ratio_K = inputs.trainer_logprobs_K - inputs.inference_logprobs_K
    ratio_K = log_ratio_K.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    clipped_K = ratio_K.clamp(1 - config.clip_low, 1 + config.clip_high)
    unclipped_loss_K = -ratio_K * inputs.advantages_K
    clipped_loss_K = -clipped_K * inputs.advantages_K
    loss_K = torch.maximum(unclipped_loss_K, clipped_loss_K)
    with torch.no_grad():
        clip_active_K = clipped_loss_K > unclipped_loss_K
        mismatch_kl_K = ratio_K - log_ratio_K - 1  # k3 estimator of KL(mu || pi)
    return LossOutput(
        loss=loss_K.sum() / inputs.denominator,
        metric_sums={"clip_fraction": clip_active_K.float().sum(), "mismatch_kl": mismatch_kl_K.sum()},
    )
