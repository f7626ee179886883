"""Slices of a micro-batch are the micro-batch, and a slice looks back as far as the whole does."""

from typing import cast

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.trainers.crew import Crew
from trainers.model.attention import block_attention, packed_attention, packed_layout
from trainers.model.context import ContextSlice, slice_tokens
from trainers.packing import micro_batch, training_sequence


class Member:
    """Place in a group of ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = lambda: rank, lambda: size


def slices(lengths: list[int], ranks: int) -> list[ContextSlice]:
    rng = np.random.default_rng(0)
    sequences = [training_sequence(rng.integers(1, 99, n), rng.integers(0, 2, n), 64, echo=True) for n in lengths]
    batch = micro_batch(sequences)
    parts = [slice_tokens(batch, cast(dist.ProcessGroup, Member(rank, ranks))) for rank in range(ranks)]
    tokens = torch.cat([part.token_ids_M for part in parts])
    size = len(parts[0].token_ids_M)
    assert torch.equal(tokens[: len(batch.token_ids_N)], batch.token_ids_N)
    scored = torch.cat([part.scored for part in parts])
    assert torch.equal(scored.sort().values, torch.arange(len(batch.predicts_K)))
    predicts = torch.cat([part.predicts + rank * size for rank, part in enumerate(parts)])
    assert torch.equal(predicts, batch.predicts_K[scored])
    return parts


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("lengths", [[1], [7], [40, 9, 2], [5, 5, 5, 5]])
def test_slices_hold_every_token_once_and_know_what_they_look_at(lengths: list[int], ranks: int) -> None:
    parts = slices(lengths, ranks)
    assert {len(part.token_ids_M) for part in parts} == {-(-sum(lengths) // ranks)}
    for rank, part in enumerate(parts):
        begin = rank * len(part.token_ids_M)
        assert sum(part.lengths_S) == len(part.token_ids_M)
        assert (part.keys.start, part.keys.stop) == (begin - part.before, begin + len(part.token_ids_M))
        starts = np.cumsum([0, *part.lengths_S])[1:-1]
        assert (part.position_ids_M[starts] == 0).all()
        if part.token_ids_M[0]:  # no padding
            assert part.position_ids_M[0] == part.before


@pytest.mark.parametrize("window", [None, 6])
def test_attention_of_the_slices_is_attention_of_the_whole(window: int | None) -> None:
    lengths, ranks = [29, 14, 3, 2], 3
    torch.manual_seed(0)
    query, key, value = (torch.randn(sum(lengths), 4, 8) for _ in range(3))

    def attend(tokens: slice, keys: slice, part: ContextSlice | None) -> torch.Tensor:
        layout = packed_layout(part.lengths_S if part else lengths, query.device, part)
        assert layout.longest_keys >= layout.longest
        inputs = (query[tokens], key[keys], value[keys])
        return torch.cat([block_attention(*inputs, block, None, window) for block in layout.blocks])

    size = sum(lengths) // ranks
    parts = [
        attend(slice(rank * size, (rank + 1) * size), part.keys, part)
        for rank, part in enumerate(slices(lengths, ranks))
    ]
    torch.testing.assert_close(torch.cat(parts), attend(slice(None), slice(None), None), atol=1e-5, rtol=1e-5)


def attend_to_slices() -> float:
    """How far attention on two ranks' slices, with values narrower than keys, is from that of the whole, and its
    gradients."""
    lengths, [half, half] = [29, 14, 3, 2], 2 * [24]
    torch.manual_seed(0)
    whole = [torch.randn(1, 4, sum(lengths), width, requires_grad=True) for width in (24, 24, 16)]
    mine = slice(dist.get_rank() * half, (dist.get_rank() + 1) * half)
    own = [tensor[:, :, mine].detach().requires_grad_() for tensor in whole]
    batch = micro_batch([training_sequence(np.arange(n), np.ones(n), 64) for n in lengths])
    part = slice_tokens(batch, dist.group.WORLD)
    layouts = packed_layout(lengths, whole[0].device), packed_layout(part.lengths_S, whole[0].device, part)
    (expected, _), (found, _) = (
        packed_attention(torch.nn.Identity(), *inputs, None, packed_layout=layout)
        for inputs, layout in zip((whole, own), layouts, strict=True)
    )
    expected.square().sum().backward()
    found.square().sum().backward()
    pairs = [(found, expected[:, mine]), *((a.grad, b.grad[:, :, mine]) for a, b in zip(own, whole, strict=True))]
    return max(float((ours - theirs).abs().max()) for ours, theirs in pairs)


@pytest.mark.slow
def test_slices_whose_values_are_narrower_than_their_keys_equal_the_whole(crew: Crew) -> None:
    assert max(crew.call(2, "tests.trainers.model.test_context:attend_to_slices")) < 1e-4
