"""One rollout as the optimizer saw it: a colour and a line of figures per token, by one quantity at a time.

The scale is that of the whole rollout, not of the part on the page, and only tokens that have the quantity make it. It
ends at their 99th percentile, so that one outlier does not make all others look alike.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from frontend import numbers
from rollouts.formats.arrays import Array
from rollouts.selectors.token_values import SeenTokens
from trainers.wire import IN_LOSS, MaskReason

PAGE = 1000
"""Tokens shown at once."""
TONES = 4
"""Strengths of colour, in each direction."""
FARTHEST = 1000.0
"""Ratios that are farther from 1 are shown like this one: that of a token which became impossible is 0."""


@dataclass(frozen=True)
class Quantity:
    """Something that tokens are coloured by: not at all at 0, one colour above, another below."""

    key: str
    label: str
    meaning: str
    values: Callable[[SeenTokens], Array]
    ends: Callable[[float], str]
    """Where the strongest colour begins, from the limit of the scale."""


def _log_ratios(seen: SeenTokens) -> Array:
    logs: Array = np.log(np.clip(seen.ratios, 1 / FARTHEST, FARTHEST))
    return logs


def _around_zero(limit: float) -> str:
    return f"−{numbers.number(limit)} and +{numbers.number(limit)}"


def _around_one(limit: float) -> str:
    return f"{numbers.number(math.exp(-limit))} and {numbers.number(math.exp(limit))}"


QUANTITIES = {
    each.key: each
    for each in (
        Quantity("ratio", "Ratio", "what the loss bounds", _log_ratios, _around_one),
        Quantity("advantage", "Advantage", "as the loss took it", lambda seen: seen.advantages, _around_zero),
        Quantity(
            "difference",
            "Difference",
            "trainer's logprob minus the engine's",
            lambda seen: seen.differences,
            _around_zero,
        ),
        Quantity("entropy", "Entropy", "of the trainer's distribution", lambda seen: seen.entropies, numbers.number),
        Quantity(
            "logprob",
            "Logprob",
            "of the trainer",
            lambda seen: seen.trainer_logprobs,
            lambda limit: numbers.number(-limit),
        ),
    )
}


@dataclass(frozen=True)
class ShownToken:
    """One token of a page; None for figures it does not have."""

    position: int
    token_id: int
    text: str
    """Empty when nobody said what it says."""
    tone: str
    """`up-1` to `up-4`, `down-1` to `down-4`, or empty."""
    reason: MaskReason
    engine: float | None
    trainer: float | None
    difference: float | None
    ratio: float | None
    advantage: float | None
    entropy: float | None
    begins: int | None
    """The number of the branch that begins here, of a rollout with several; counted from 1."""

    @property
    def standing(self) -> str:
        """`trained`, `held` by a bound or a correction, or `outside` of the loss."""
        if self.reason is MaskReason.TRAINED:
            return "trained"
        return "held" if self.reason in IN_LOSS else "outside"

    @property
    def line(self) -> str:
        """All of it in words, for the tooltip."""
        head = f"token {self.position}, id {self.token_id}: {self.reason.meaning}"
        figures = [
            ("engine", numbers.number(self.engine)),
            ("trainer", numbers.number(self.trainer)),
            ("difference", numbers.signed(self.difference)),
            ("ratio", numbers.number(self.ratio)),
            ("advantage", numbers.signed(self.advantage)),
            ("entropy", numbers.number(self.entropy)),
        ]
        return head if self.trainer is None else f"{head}\n{', '.join(f'{name} {text}' for name, text in figures)}"


@dataclass(frozen=True)
class TokenView:
    """A page of a rollout's tokens."""

    quantity: Quantity
    ends: str
    tokens: list[ShownToken]
    begin: int
    end: int
    total: int
    standings: list[tuple[str, int]]
    """What became of the tokens, and of how many."""
    branches: int

    @property
    def previous(self) -> int | None:
        return max(0, self.begin - PAGE) if self.begin else None

    @property
    def next(self) -> int | None:
        return self.end if self.end < self.total else None


def view(seen: SeenTokens, by: str, begin: int | None = None) -> TokenView:
    """The tokens from ``begin`` on, or from the policy's first; an unknown ``by`` is the ratio."""
    quantity = QUANTITIES.get(by, QUANTITIES["ratio"])
    total = len(seen.token_ids)
    sampled = np.flatnonzero(seen.mask_reasons != MaskReason.NOT_SAMPLED)
    if begin is None:
        begin = int(sampled[0]) if len(sampled) else 0
    begin = min(begin, max(0, total - 1))
    end = min(total, begin + PAGE)
    values = quantity.values(seen)
    known = np.abs(values[~np.isnan(values)])
    limit = float(np.percentile(known, 99)) if len(known) else 0.0
    counts = Counter(seen.mask_reasons.tolist())
    branches = len(seen.branch_lengths)
    first = accumulate(seen.branch_lengths[:-1], initial=0)
    begins = {at: number for number, at in enumerate(first, 1)} if branches > 1 else {}
    return TokenView(
        quantity=quantity,
        ends=quantity.ends(limit) if limit else "",
        tokens=[_shown(seen, at, tone(float(values[at]), limit), begins.get(at)) for at in range(begin, end)],
        begin=begin,
        end=end,
        total=total,
        standings=[(MaskReason(number).meaning, count) for number, count in sorted(counts.items())],
        branches=branches,
    )


def tone(value: float, limit: float) -> str:
    """The class that colours a value of a scale that ends at `limit`, in either direction."""
    if math.isnan(value) or not limit:
        return ""
    strength = min(TONES, round(abs(value) / limit * TONES))
    return f"{'up' if value > 0 else 'down'}-{strength}" if strength else ""


def _shown(seen: SeenTokens, at: int, tone: str, begins: int | None) -> ShownToken:
    return ShownToken(
        position=at,
        token_id=int(seen.token_ids[at]),
        text="" if seen.texts is None else seen.texts[at],
        tone=tone,
        reason=MaskReason(int(seen.mask_reasons[at])),
        engine=_figure(seen.inference_logprobs[at]),
        trainer=_figure(seen.trainer_logprobs[at]),
        difference=_figure(seen.differences[at]),
        ratio=_figure(seen.ratios[at]),
        advantage=_figure(seen.advantages[at]),
        entropy=_figure(seen.entropies[at]),
        begins=begins,
    )


def _figure(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
