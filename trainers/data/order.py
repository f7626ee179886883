"""Which examples a step trains on: a function of the seed and the step, so that a resumed run needs no stored position.

Positions 0, 1, 2, ... run through whole shuffled passes, one after another; step n takes the positions from
n * batch_size on. Shapes: E examples.
"""

import functools

import numpy as np


def batch_indices(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Which of `count` examples step `step` trains on."""
    first = step * batch_size
    return [int(_order(count, seed, at // count)[at % count]) for at in range(first, first + batch_size)]


def hold_out(count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices to train on and indices never to train on, int64, each ascending; there is at least one of both.

    Needs two examples.
    """
    held = min(count - 1, max(1, round(count * share)))
    order_E = _shuffled(count, [seed, 1])
    return np.sort(order_E[held:]), np.sort(order_E[:held])


@functools.lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return _shuffled(count, [seed, 0, epoch])


def _shuffled(count: int, entropy: list[int]) -> np.ndarray:
    # numpy promises that these numbers stay the same in every later version; of its newer generators it does not.
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(entropy))).permutation(count)
