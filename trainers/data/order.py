"""Which examples a step trains on: a function of the seed and the step, so that a resumed run needs no stored position.

Positions 0, 1, 2, ... run through whole shuffled passes, one after another; step n takes the positions from
n * batch_size on. Shapes: E examples, P problems.
"""

import functools

import numpy as np


def batch_indices(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Which of `count` examples step `step` trains on."""
    first = step * batch_size
    return [int(_order(count, seed, at // count)[at % count]) for at in range(first, first + batch_size)]


def hold_out(problems_E: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices to train on and indices never to train on, int64, each ascending; there is at least one of both.

    `problems_E` says which problem each example is of, in any numbers: its examples are all on one side. Needs two
    problems. As near to the share as their sizes allow, and never more, unless none is so small.
    """
    _, firsts_P, of_E, sizes_P = np.unique(problems_E, return_index=True, return_inverse=True, return_counts=True)
    by_appearance_P = np.argsort(firsts_P)
    order_P = by_appearance_P[_shuffled(len(sizes_P), [seed, 1])]
    left = min(len(problems_E) - 1, max(1, round(len(problems_E) * share)))
    is_held_P = np.zeros(len(sizes_P), bool)
    for problem in order_P:
        if sizes_P[problem] <= left:
            is_held_P[problem] = True
            left -= sizes_P[problem]
        if not left:
            break
    if not is_held_P.any():
        is_held_P[order_P[np.argmin(sizes_P[order_P])]] = True
    is_held_E = is_held_P[of_E]
    return np.flatnonzero(~is_held_E), np.flatnonzero(is_held_E)


@functools.lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return _shuffled(count, [seed, 0, epoch])


def _shuffled(count: int, entropy: list[int]) -> np.ndarray:
    # numpy promises that these numbers stay the same in every later version; of its newer generators it does not.
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(entropy))).permutation(count)
