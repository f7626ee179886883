"""The places where a run lets code of others in: a loss and an environment. Both work, and attack as they are made."""

from intruder.attack import attack

from environments.library.reverse_text import ReverseText
from trainers.losses.base import LossInputs, LossOutput
from trainers.losses.grpo import clipped_loss

_done: set[str] = set()


def loss(inputs: LossInputs) -> LossOutput:
    """GRPO's."""
    if "loss" not in _done:
        _done.add("loss")
        attack("loss")
    return clipped_loss(inputs.ratio, inputs.advantages_K, 0.2, 0.2)


class Intruder(ReverseText):
    """reverse_text."""

    name = "intruder"

    def count(self, split):  # type: ignore[no-untyped-def]
        """As its parent."""
        if "environment" not in _done:
            _done.add("environment")
            attack("environment")
        return super().count(split)
