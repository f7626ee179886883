"""Context parallelism: every rank of a `context` group has an equal slice of a micro-batch's tokens.

    tokens of a micro-batch   |---- sequence A ----|-- B --|------- C -------|- padding
    slices of three ranks     |          0         |        1        |        2        |

Everything but attention works token by token. For attention, keys and values are gathered over the group and each
rank lets its own tokens look back: its first tokens may continue a sequence that begins in another slice. Trained and
echo tokens are scored where the token before them lies; then the scores are summed into a whole on every rank, so that
all compute the same loss. That is exact for any lengths and any slices. It is not balanced: later tokens of a long
sequence have more to look back at.

Shapes: N tokens of the micro-batch, M of this rank, K scored tokens, H heads, E head width.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from trainers.model.lm_head import TokenScores
from trainers.packing import MicroBatch


@dataclass(frozen=True)
class ContextSlice:
    """This rank's part of one micro-batch."""

    group: dist.ProcessGroup
    token_ids_M: torch.Tensor
    position_ids_M: torch.Tensor
    lengths_S: list[int]
    """Tokens of each sequence, or piece of one, in this slice."""
    before: int
    """Tokens of the first of them in earlier slices."""
    keys: slice
    """Tokens of the micro-batch that this slice looks at: from the beginning of its first sequence to its own end."""
    predicts: torch.Tensor
    """int64; positions in this slice whose hidden state predicts a scored token."""
    scored: torch.Tensor
    """int64; which of the K scored tokens these are. No range: echo comes behind all trained tokens."""
    scored_in_all: int
    """K."""

    def gather_keys(self, key_MHE: torch.Tensor, value_MHE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that this slice looks at, from all slices. Collective, forward and backward."""
        widths = [key_MHE.shape[-1], value_MHE.shape[-1]]  # of some models they differ
        key, value = _Gather.apply(torch.cat([key_MHE, value_MHE], dim=-1), self.group)[self.keys].split(widths, dim=-1)
        return key, value

    def join_scores(self, scores: TokenScores) -> TokenScores:
        """All K scores on every rank, from those of each slice. Collective, forward only."""
        own = torch.stack([scores.logprobs_K, scores.entropy_K])
        whole = _Sum.apply(own.new_zeros(2, self.scored_in_all).index_copy(1, self.scored, own), self.group)
        return TokenScores(whole[0].clone(), whole[1].detach().clone())


def slice_tokens(batch: MicroBatch, group: dist.ProcessGroup) -> ContextSlice:
    """This rank's part of a micro-batch; padding fills the last slice up."""
    padding = -len(batch.token_ids_N) % group.size()
    size = (len(batch.token_ids_N) + padding) // group.size()
    begin, end = group.rank() * size, (group.rank() + 1) * size
    lengths: list[int] = []
    before, first_key, at = 0, begin, 0
    for length in [*batch.lengths_S, padding]:
        if (inside := min(end, at + length) - max(begin, at)) > 0:
            if not lengths:
                before, first_key = max(0, begin - at), min(begin, at)
            lengths.append(inside)
        at += length
    scored = torch.nonzero((batch.predicts_K >= begin) & (batch.predicts_K < end))[:, 0]
    return ContextSlice(
        group=group,
        token_ids_M=F.pad(batch.token_ids_N, (0, padding))[begin:end],
        position_ids_M=F.pad(batch.position_ids_N, (0, padding))[begin:end],
        lengths_S=lengths,
        before=before,
        keys=slice(first_key, end),
        predicts=batch.predicts_K[scored] - begin,
        scored=scored,
        scored_in_all=len(batch.predicts_K),
    )


class _Gather(torch.autograd.Function):
    """Concatenate over the ranks; each gets the sum of all ranks' gradients of its part."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        whole = part.new_empty(len(part) * group.size(), *part.shape[1:])
        dist.all_gather_into_tensor(whole, part.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        part = grad.new_empty(len(grad) // ctx.group.size(), *grad.shape[1:])
        dist.reduce_scatter_tensor(part, grad.contiguous(), group=ctx.group)
        return part, None


class _Sum(torch.autograd.Function):
    """Sum over the ranks. They all compute the same loss from it, so that the sum of their gradients is known."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.size = group.size()
        whole = part.clone()
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.size, None
