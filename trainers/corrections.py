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

import torch

from trainers.losses.base import LossInputs, safe_exp
from trainers.run_config import CorrectionsConfig


def mismatch_kl(inputs: LossInputs) -> torch.Tensor:
    """k3 estimate of KL(mu || pi) at each token, shape K, without gradient: r - log r - 1 with r = pi / mu."""
    log_ratio_K = (inputs.trainer_logprobs_K - inputs.inference_logprobs_K).detach()
    return safe_exp(log_ratio_K) - log_ratio_K - 1


def correction_factors(inputs: LossInputs, config: CorrectionsConfig) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The factor of each token's loss, shape K, 0 where it is dropped, and metrics like those of a loss.

    Metrics: truncated_fraction (tokens whose factor hit its cap), masked_fraction (tokens that were dropped).
    """
    log_w_K = (inputs.trainer_logprobs_K - inputs.inference_logprobs_K).detach()
    factor_K = torch.ones_like(log_w_K)
    metrics_K: dict[str, torch.Tensor] = {}
    cap = config.token_cap or config.sequence_cap
    if cap is not None:
        weight_K = safe_exp(log_w_K if config.token_cap else inputs.sequence_sums(log_w_K)[inputs.sequence_K])
        factor_K = weight_K.clamp(max=cap)
        metrics_K["truncated_fraction"] = (weight_K > cap).float()
    dropped_S = _dropped_sequences(inputs, log_w_K, config)
    if dropped_S is not None:
        dropped_K = dropped_S[inputs.sequence_K]
        factor_K = factor_K.masked_fill(dropped_K, 0.0)
        metrics_K["masked_fraction"] = dropped_K.float()
    return factor_K, metrics_K


def _dropped_sequences(inputs: LossInputs, log_w_K: torch.Tensor, config: CorrectionsConfig) -> torch.Tensor | None:
    tests: list[torch.Tensor] = []
    mean_S = inputs.sequence_means(log_w_K)
    if config.geometric_low:
        tests.append(mean_S < math.log(config.geometric_low))
    if config.geometric_high is not None:
        tests.append(mean_S > math.log(config.geometric_high))
    if config.max_divergence is not None:
        zeros_S = log_w_K.new_zeros(inputs.sequences)
        largest_S = zeros_S.scatter_reduce(0, inputs.sequence_K, log_w_K.abs(), "amax")
        tests.append(largest_S > config.max_divergence)
    return torch.stack(tests).any(dim=0) if tests else None
