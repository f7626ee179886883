"""Cross-entropy: supervised fine-tuning, and imitation of rollouts whatever they are worth.

    loss_t = -log pi(t)

Denominator: all trained tokens of the batch, unless the config says otherwise. Shapes: K tokens.
"""

from trainers.losses.base import LossInputs, LossOutput


def cross_entropy_loss(inputs: LossInputs) -> LossOutput:
    """Advantages, inference and reference logprobs play no part."""
    return LossOutput(-inputs.trainer_logprobs_K)
