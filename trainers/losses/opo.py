"""OPO: policy gradient with the baseline of least variance (arXiv:2505.23585).

    b      = sum of L_j R_j / sum of L_j over the group,  A_i = R_i - b     (advantage `length_weighted`)
    loss_t = -min(r, delta) A

The baseline is optimal when squared gradient norms grow with length. The paper is exactly on policy, where r is 1;
behind an engine that lags, the ratio corrects with AIPO's bound. Denominator: all trained tokens of the batch. Shapes:
K tokens.
"""

from trainers.losses.aipo import aipo_loss
from trainers.losses.base import LossInputs, LossOutput
from trainers.run_config import OpoLoss


def opo_loss(inputs: LossInputs, config: OpoLoss) -> LossOutput:
    """What is OPO's own is the advantage. Metric: clip_fraction."""
    return aipo_loss(inputs, config)
