"""KL divergence to a reference policy, as a term beside a loss (Eq. 4 of arXiv:2402.03300).

    loss_t = exp(d) - d - 1,  d = log pi_ref(t) - log pi(t)

The k3 estimator of KL(pi || pi_ref): unbiased on policy, never negative. Denominator: that of the loss beside it.
Shapes: K tokens.
"""

import torch

from trainers.losses.base import MAX_LOG_RATIO, LossInputs


def reference_kl_losses(inputs: LossInputs) -> torch.Tensor:
    """k3 of each token, with gradient; a token the reference prefers by more than MAX_LOG_RATIO has none."""
    difference_K = (inputs.ref_logprobs_K - inputs.trainer_logprobs_K).clamp(max=MAX_LOG_RATIO)
    return difference_K.exp() - difference_K - 1
