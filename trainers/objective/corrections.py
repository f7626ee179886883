"""What is done about rollouts that the trainer and the inference engine see differently: constant factors of a loss.

    w = old(t) / mu(t)      old: the trainer at the start of the step, mu: what the inference engine reported

    token_cap        loss_t times min(w, C)                                  truncated importance sampling
    sequence_cap     loss_t times min(product of w over the rollout, C)      the same for the whole rollout
    geometric_low    drop a rollout whose (product of w)^(1/L) is below or above: a mask on the geometric mean
    geometric_high
    max_divergence   drop a rollout in which any |log w| is larger: a bound on the largest divergence, which no bound
                     per token can give (arXiv:2512.23075)

Three logprobs are kept apart (arXiv:2605.12070): the engine's, the trainer's at the start of the step, the trainer's
now. Weights change once per step, so before that change the second is the third without its gradient; it costs no
further forward pass. Dropped tokens stay in the denominator. Shapes: K tokens, S sequences.
"""

import math
from typing import NamedTuple

import torch

from trainers.losses.base import LossInputs, safe_exp
from trainers.run_config import CorrectionsConfig
from trainers.wire import MaskReason


class Corrected(NamedTuple):
    """What is done about the tokens of one micro-batch."""

    factor_K: torch.Tensor
    """Of each token's loss; 0 where it is dropped."""
    metrics_K: dict[str, torch.Tensor]
    """Like those of a loss: truncated_fraction (tokens whose factor hit its cap), masked_fraction (dropped tokens)."""
    marks_K: dict[MaskReason, torch.Tensor]
    """bool; the tokens that each correction caught."""


def mismatch_kl(inputs: LossInputs) -> torch.Tensor:
    """k3 estimate of KL(mu || pi) at each token, shape K, without gradient: r - log r - 1 with r = pi / mu."""
    log_ratio_K = (inputs.trainer_logprobs_K - inputs.inference_logprobs_K).detach()
    return safe_exp(log_ratio_K) - log_ratio_K - 1


def correction_factors(inputs: LossInputs, config: CorrectionsConfig) -> Corrected:
    """The factors that the config asks for; 1 where it asks for none."""
    log_w_K = (inputs.trainer_logprobs_K - inputs.inference_logprobs_K).detach()
    factor_K = torch.ones_like(log_w_K)
    metrics_K: dict[str, torch.Tensor] = {}
    marks_K: dict[MaskReason, torch.Tensor] = {}
    cap = config.token_cap or config.sequence_cap
    if cap is not None:
        weight_K = safe_exp(log_w_K if config.token_cap else inputs.sequence_sums(log_w_K)[inputs.sequence_K])
        factor_K = weight_K.clamp(max=cap)
        marks_K[MaskReason.CAPPED] = weight_K > cap
        metrics_K["truncated_fraction"] = marks_K[MaskReason.CAPPED].float()
    dropped = {reason: is_S[inputs.sequence_K] for reason, is_S in _dropped_sequences(inputs, log_w_K, config).items()}
    if dropped:
        dropped_K = torch.stack(list(dropped.values())).any(dim=0)
        factor_K = factor_K.masked_fill(dropped_K, 0.0)
        metrics_K["masked_fraction"] = dropped_K.float()
    return Corrected(factor_K, metrics_K, marks_K | dropped)


def _dropped_sequences(
    inputs: LossInputs, log_w_K: torch.Tensor, config: CorrectionsConfig
) -> dict[MaskReason, torch.Tensor]:
    found: dict[MaskReason, torch.Tensor] = {}
    if config.geometric_low or config.geometric_high is not None:
        mean_S = inputs.sequence_means(log_w_K)
        low = math.log(config.geometric_low) if config.geometric_low else -math.inf
        high = math.inf if config.geometric_high is None else math.log(config.geometric_high)
        found[MaskReason.MEAN_OUT_OF_BOUNDS] = (mean_S < low) | (mean_S > high)
    if config.max_divergence is not None:
        zeros_S = log_w_K.new_zeros(inputs.sequences)
        largest_S = zeros_S.scatter_reduce(0, inputs.sequence_K, log_w_K.abs(), "amax")
        found[MaskReason.DIVERGED] = largest_S > config.max_divergence
    return found
