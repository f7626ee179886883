"""GSPO: clip the ratio of the whole rollout, normalised by its length (arXiv:2507.18071).

    s        = (pi(y) / old(y))^(1/L) = exp(mean over tokens of log r)
    gspo         loss_t = -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)
    gspo_token   the same with s_t = sg(s) pi(t) / sg(pi(t)): the value of s, the gradient of the token

With one advantage for all tokens the two have the same value and gradient. L and the mean are over trained tokens.
Denominator: the rollout's tokens, then rollouts, that is, a mean over rollouts. Shapes: K tokens, S sequences.
"""

from trainers.losses.base import LossInputs, LossOutput, safe_exp
from trainers.losses.grpo import clipped_loss
from trainers.run_config import GspoLoss, GspoTokenLoss


def gspo_loss(inputs: LossInputs, config: GspoLoss) -> LossOutput:
    """The rollout's loss at each of its tokens. Metric: clip_fraction, tokens of rollouts that the clip stops."""
    ratio_K = safe_exp(inputs.sequence_means(inputs.log_ratio))[inputs.sequence_K]
    return clipped_loss(ratio_K, inputs.advantages_K, config.clip_low, config.clip_high)


def gspo_token_loss(inputs: LossInputs, config: GspoTokenLoss) -> LossOutput:
    """Advantages may differ from token to token. Metric: clip_fraction."""
    ratio_S = safe_exp(inputs.sequence_means(inputs.log_ratio)).detach()
    logprobs_K = inputs.trainer_logprobs_K
    ratio_K = ratio_S[inputs.sequence_K] * (logprobs_K - logprobs_K.detach()).exp()
    return clipped_loss(ratio_K, inputs.advantages_K, config.clip_low, config.clip_high)
