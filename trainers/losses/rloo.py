"""RLOO: policy gradient of whole rollouts, each against the mean of the others (arXiv:2402.14740).

    A_i    = R_i - mean of R_j over j != i                                  (advantage `leave_one_out`)
    loss_i = -A_i log pi(y_i) = sum over t of -A_i log pi(t)                on policy
    loss_t = -min(r, delta) A                                               behind an engine that lags

The rollout is one action, so tokens are summed, not averaged. Denominator: rollouts of the batch. Shapes: K tokens.
"""

from trainers.losses.aipo import aipo_loss
from trainers.losses.base import LossInputs, LossOutput
from trainers.run_config import RlooLoss


def rloo_loss(inputs: LossInputs, config: RlooLoss) -> LossOutput:
    """What is RLOO's own is the advantage and the normaliser. Metric: clip_fraction."""
    return aipo_loss(inputs, config)
