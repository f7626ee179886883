"""What Atropos' format has no key for, in one key of our own that its readers pass over: files of groups keep it.

{"tokens": ..., "rollyard": {"branches": [2, 1], "tools": [[...], []]}}
"""

from dataclasses import replace
from itertools import accumulate
from typing import Self

import msgspec
import numpy as np

from environments.types import JsonObject
from rollouts.errors import Fault, Invalid
from rollouts.formats.arrays import COUNT, PackedGroup, RolloutRecord
from rollouts.formats.atropos.items import Item

KEY = "rollyard"
_NO_TOOLS = msgspec.Raw(b"[]")


class Additions(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Of the R rollouts of a group."""

    branches: list[int] | None = None
    """How many of the item's sequences belong to each, in order; None: one each."""
    tools: list[msgspec.Raw] | None = None
    """What each was told it may call; None: nothing."""
    seats: list[str] | None = None
    """Who each played in a match; None: there are no seats."""

    @classmethod
    def of(cls, branches: list[int], tools: list[str | None], seats: list[str]) -> Self | None:
        """What there is to add, if anything; tools are JSON text."""
        if max(branches, default=1) == 1 and not any(tools) and not any(seats):
            return None
        return cls(
            branches=branches if max(branches, default=1) > 1 else None,
            tools=[msgspec.Raw(each.encode()) if each else _NO_TOOLS for each in tools] if any(tools) else None,
            seats=seats if any(seats) else None,
        )


class CompleteItem(Item, kw_only=True):
    """An item of a file."""

    rollyard: Additions


class _Added(msgspec.Struct):
    rollyard: Additions | None = None


_decode = msgspec.json.Decoder(_Added).decode
_decode_tools = msgspec.json.Decoder(list[JsonObject]).decode


def complete(group: PackedGroup, text: bytes) -> PackedGroup:
    """The group of an item, with what its text adds to the item. Raises Invalid for what does not fit it."""
    if f'"{KEY}"'.encode() not in text:
        return group
    try:
        added = _decode(text).rollyard
        tools = [_decode_tools(each) for each in (added and added.tools) or ()]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _fault(f"is not what export-groups writes: {error}") from None
    if added is None:
        return group
    if added.branches is not None:
        group = _joined(group, added.branches)
    for name, values in (("tools", tools), ("seat", added.seats or [])):
        if values and len(values) != len(group.rollouts):
            raise _fault(f"has the {name} of {len(values)} rollouts, the group has {len(group.rollouts)}")
        for rollout, own in zip(group.rollouts, values, strict=False):
            setattr(rollout, name, own)
    return group


def _joined(group: PackedGroup, branches: list[int]) -> PackedGroup:
    """The group whose sequences are branches: so many of the first rollout, so many of the second, ..."""
    if sum(branches) != len(group.rollouts) or min(branches, default=0) < 1:
        raise _fault(f"has branches {branches}, which do not add up to {len(group.rollouts)} sequences")
    ends = list(accumulate(branches))
    rollouts = [_rollout(group.rollouts[end - count : end]) for count, end in zip(branches, ends, strict=True)]
    starts = [end - count for count, end in zip(branches, ends, strict=True)]
    lengths = np.add.reduceat(group.arrays.lengths.astype(np.int64), starts).astype(COUNT)
    arrays = replace(group.arrays, lengths=lengths, branch_lengths=group.arrays.lengths)
    return replace(group, rollouts=rollouts, arrays=arrays)


def _rollout(sequences: list[RolloutRecord]) -> RolloutRecord:
    if len({each.reward for each in sequences}) > 1:
        raise _fault("has branches of one rollout with different scores")
    *earlier, last = sequences
    if any(each.messages for each in earlier):
        last.earlier_branches = [list(each.messages) for each in earlier]
    return last


def _fault(message: str) -> Invalid:
    return Invalid(faults=[Fault((KEY,), message)])
