"""DPO (Eq. 7 of arXiv:2305.18290): prefer the chosen answer to the rejected one, measured against where training began.

    r(y) = beta * (log pi(y) - log ref(y))       implicit reward; log pi(y) is the sum over the tokens of y
    loss = -1/P sum over pairs of log sigmoid(r(chosen) - r(rejected))

Denominator P: all pairs of the batch, over micro-batches and ranks. The loss of a pair is not a sum over its tokens,
but its gradient is one with a coefficient per answer,

    d loss / d log pi(chosen) = -w,   d loss / d log pi(rejected) = w,   w = beta / P * sigmoid(r(rejected) - r(chosen))

so the logprobs of whole answers are measured first, without gradient, and then each token is pushed by the coefficient
of its answer. That is the exact gradient wherever the two answers of a pair are packed: they share neither micro-batch
nor rank.

Shapes: P pairs, K trained tokens of one micro-batch.
"""

from typing import NamedTuple

import numpy as np

from trainers.losses.base import LossInputs, LossOutput


class Preferences(NamedTuple):
    """How a model sees pairs. All float64 [P]."""

    losses_P: np.ndarray
    weights_P: np.ndarray
    """How strongly each pair pushes: beta / P * sigmoid(-margin)."""
    chosen_rewards_P: np.ndarray
    rejected_rewards_P: np.ndarray

    def sums(self) -> dict[str, float]:
        """Sums over the pairs, to be divided by their number; a margin of zero prefers neither."""
        margins_P = self.chosen_rewards_P - self.rejected_rewards_P
        return {
            "loss": float(self.losses_P.sum()),
            "accuracy": float((margins_P > 0).sum()),
            "margin": float(margins_P.sum()),
            "chosen_reward": float(self.chosen_rewards_P.sum()),
            "rejected_reward": float(self.rejected_rewards_P.sum()),
        }


def preferences(
    chosen_P: np.ndarray, rejected_P: np.ndarray, ref_chosen_P: np.ndarray, ref_rejected_P: np.ndarray, beta: float
) -> Preferences:
    """Loss and coefficients of pairs from the summed logprobs of their answers, float64 [P] each."""
    chosen_rewards_P = beta * (chosen_P - ref_chosen_P)
    rejected_rewards_P = beta * (rejected_P - ref_rejected_P)
    margins_P = chosen_rewards_P - rejected_rewards_P
    losses_P = np.logaddexp(0.0, -margins_P)  # -log sigmoid(margin), without overflow
    weights_P = beta / max(1, len(margins_P)) * np.exp(-np.logaddexp(0.0, margins_P))
    return Preferences(losses_P, weights_P, chosen_rewards_P, rejected_rewards_P)


def push_loss(inputs: LossInputs) -> LossOutput:
    """Push each token by its advantage, a coefficient: the gradient is DPO's, the value is not."""
    return LossOutput(losses_K=-inputs.advantages_K * inputs.trainer_logprobs_K)
