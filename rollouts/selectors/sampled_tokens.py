"""Reads of the tokens of one rollout as they were stored, whether or not a step has seen them."""

from dataclasses import dataclass

import numpy as np

from rollouts.errors import NotFound
from rollouts.formats.arrays import COUNT, LOGPROB, MASK, TOKEN_ID, Array, branches_of, split
from rollouts.models import GroupTokens, Rollout, Run


@dataclass(frozen=True)
class SampledTokens:
    """One rollout of T tokens."""

    rollout: Rollout
    token_ids: Array
    """u32 [T]."""
    is_sampled: Array
    """bool [T]; False: the prompt, or what the environment said."""
    logprobs: Array
    """f32 [T], of the engine; NaN where a token was not sampled."""
    branch_lengths: list[int]
    """Tokens of each branch, which add up to T."""


def get(run: Run, number: int) -> SampledTokens:
    """The tokens of a rollout of the run. Two queries. Raises NotFound."""
    rows = Rollout.objects.select_related("group__run").defer("messages", "earlier_branches", "tools", "spans")
    rollout = rows.filter(group__run=run, pk=number).first()
    if rollout is None:
        raise NotFound(f"Run {run.key} has no rollout {number}.")
    tokens = GroupTokens.objects.filter(group=rollout.group_id).defer("ref_logprobs", "advantages", "extras").first()
    if tokens is None:
        raise NotFound(f"Of rollout {number} no tokens are stored.")
    lengths = np.frombuffer(tokens.lengths, COUNT).tolist()

    def own(data: bytes | memoryview, dtype: np.dtype) -> Array:
        return np.frombuffer(list(split(data, lengths, dtype.itemsize))[rollout.index], dtype)

    is_sampled = own(tokens.loss_mask, MASK) == 1
    return SampledTokens(
        rollout=rollout,
        token_ids=own(tokens.token_ids, TOKEN_ID),
        is_sampled=is_sampled,
        logprobs=np.where(is_sampled, own(tokens.inference_logprobs, LOGPROB), np.float32(np.nan)),
        branch_lengths=branches_of(lengths, tokens.branch_lengths)[rollout.index],
    )
