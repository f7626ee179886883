"""What a step draws depends on seed, step and rank alone, for every seed that a config may have."""

import pytest
import torch

from trainers.distributed.mesh import seed_step


def draw(seed: int, step: int, rank: int) -> float:
    with torch.random.fork_rng(devices=[]):
        seed_step(seed, step, rank)
        return torch.rand(()).item()


@pytest.mark.parametrize("seed", [0, 2**28, 2**31 - 1])
def test_every_seed_that_a_config_may_have_draws_apart_by_step_and_rank(seed: int) -> None:
    assert draw(seed, 3, 1) == draw(seed, 3, 1)
    assert len({draw(seed, step, rank) for step in (0, 1, 100_000) for rank in range(3)}) == 9
