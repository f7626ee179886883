"""The tokens of one rollout as they were stored, a page at a time: ids, and the engine's logprobs."""

import math
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from frontend import numbers
from frontend.pages.tokens.coloured import PAGE, tone
from rollouts.selectors.sampled_tokens import SampledTokens


@dataclass(frozen=True)
class RawToken:
    """One token."""

    position: int
    token_id: int
    is_sampled: bool
    logprob: float | None
    """None where it was not sampled."""
    tone: str
    """`down-1` to `down-4`, or empty: the less likely, the stronger."""
    begins: int | None
    """The number of the branch that begins here, of a rollout with several; counted from 1."""

    @property
    def line(self) -> str:
        """All of it in words, for the tooltip."""
        head = f"token {self.position}, id {self.token_id}"
        return f"{head}: sampled, logprob {numbers.number(self.logprob)}" if self.is_sampled else f"{head}: not sampled"


@dataclass(frozen=True)
class RawView:
    """A page of a rollout's tokens."""

    tokens: list[RawToken]
    begin: int
    total: int
    sampled: int
    """Of all."""
    branches: int
    end_of_scale: str
    """The logprob from which on the colour is full; empty where nothing was sampled."""

    @property
    def previous(self) -> int | None:
        return max(0, self.begin - PAGE) if self.begin else None

    @property
    def next(self) -> int | None:
        end = self.begin + len(self.tokens)
        return end if end < self.total else None


def view(stored: SampledTokens, begin: int) -> RawView:
    """The tokens from `begin` on."""
    total = len(stored.token_ids)
    begin = min(begin, max(0, total - 1))
    known = -stored.logprobs[~np.isnan(stored.logprobs)]
    limit = float(np.percentile(known, 99)) if len(known) else 0.0
    branches = len(stored.branch_lengths)
    first = accumulate(stored.branch_lengths[:-1], initial=0)
    begins = {at: number for number, at in enumerate(first, 1)} if branches > 1 else {}

    def shown(at: int) -> RawToken:
        logprob = float(stored.logprobs[at])
        return RawToken(
            position=at,
            token_id=int(stored.token_ids[at]),
            is_sampled=bool(stored.is_sampled[at]),
            logprob=None if math.isnan(logprob) else logprob,
            tone=tone(logprob, limit),
            begins=begins.get(at),
        )

    return RawView(
        tokens=[shown(at) for at in range(begin, min(total, begin + PAGE))],
        begin=begin,
        total=total,
        sampled=int(stored.is_sampled.sum()),
        branches=branches,
        end_of_scale=numbers.number(-limit) if limit else "",
    )
