"""Cross-entropy of the trained tokens: supervised fine-tuning.

    loss = -1/N sum over tokens of log pi(t)

Denominator N: all trained tokens of the batch, over micro-batches and ranks.
"""

from trainers.losses.base import LossInputs, LossOutput


def cross_entropy_loss(inputs: LossInputs) -> LossOutput:
    """Sum of negative logprobs; advantages and inference logprobs play no part."""
    return LossOutput(loss=-inputs.trainer_logprobs_K.sum() / inputs.denominator, metric_sums={})
