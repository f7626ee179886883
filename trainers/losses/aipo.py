"""AIPO: policy gradient weighted by an importance ratio with an upper bound (arXiv:2505.24034).

    r = pi(t) / old(t)
    clamp      loss_t = -min(r, delta) A                  differentiated through: no gradient where r > delta
    truncate   loss_t = -sg(min(r, delta)) A log pi(t)    the paper's: above delta the gradient keeps weight delta

Below delta the two have the same gradient. Denominator: all trained tokens of the batch. Shapes: K tokens.
"""

from trainers.losses.base import LossInputs, LossOutput
from trainers.run_config import AipoLoss, OpoLoss, RlooLoss


def aipo_loss(inputs: LossInputs, config: AipoLoss | OpoLoss | RlooLoss) -> LossOutput:
    """Metric: clip_fraction, tokens whose ratio is above the bound."""
    ratio_K = inputs.ratio
    bounded_K = ratio_K.clamp(max=config.delta)
    if config.bound == "clamp":
        losses_K = -bounded_K * inputs.advantages_K
    else:
        losses_K = -bounded_K.detach() * inputs.advantages_K * inputs.trainer_logprobs_K
    return LossOutput(losses_K, {"clip_fraction": (ratio_K.detach() > config.delta).float()})
