"""The items of an Atropos environment as numbered problems: drawn in its order, kept, and known by what is in them."""

import asyncio
import copy
import hashlib
from typing import Any, NamedTuple

import msgspec

from environments.errors import ProblemError
from environments.library.splits import is_held_out
from environments.types import Message, Split

_MOST_IN_VAIN = 10_000
"""Items that are drawn for one that a split lacks."""
_SHOWN_CHARACTERS = 2_000


class DrawnItem(NamedTuple):
    """One item."""

    key: str
    """Of its content: the same in every process, and whenever it comes again."""
    item: Any
    """It may be anything. Whoever plays it has a copy: classes write to theirs."""


class DrawnItems:
    """What `get_next_item` has given so far. Belongs to one event loop."""

    def __init__(self, environment: Any, *, holds_out: bool) -> None:
        """`holds_out`: whether an eighth, by their keys, is the eval split."""
        self._environment = environment
        self._holds_out = holds_out
        self._drawing = asyncio.Lock()
        self._drawn: dict[Split, list[DrawnItem]] = {Split.TRAIN: [], Split.EVAL: []}
        self.is_over = False
        """Whether `get_next_item` has given None."""

    def known(self, split: Split) -> int:
        """How many of a split were drawn."""
        return len(self._drawn[split])

    async def get(self, split: Split, index: int) -> DrawnItem:
        """Item `index` of a split; behind the last, the first come again. Raises ProblemError."""
        drawn = self._drawn[split]
        async with self._drawing:
            in_vain = 0
            while len(drawn) <= index and not self.is_over:
                in_vain = 0 if await self._draw() is split else in_vain + 1
                if in_vain > _MOST_IN_VAIN:
                    raise ProblemError(f"{in_vain} items in a row were not of split {split}.")
        if not drawn:
            raise ProblemError(f"get_next_item gave no item for split {split}.")
        return drawn[index % len(drawn)]

    async def _draw(self) -> Split | None:
        """Keep the next item; returns its split."""
        backlog = self._environment.backlog  # of what it wants to play again
        item = backlog.pop() if backlog else await self._environment.get_next_item()
        if item is None:
            self.is_over = True
            return None
        try:
            kept = DrawnItem(hashlib.sha256(_canonical(item)).hexdigest()[:16], copy.deepcopy(item))
        except Exception as error:
            raise ProblemError(
                f"get_next_item gave a {type(item).__name__} that cannot be handed on: {type(error).__name__}: {error}"
            ) from error
        split = Split.EVAL if self._holds_out and is_held_out(kept.key) else Split.TRAIN
        self._drawn[split].append(kept)
        return split


def shown(item: Any) -> list[Message]:
    """An item as people see it, before anything was said."""
    if isinstance(item, dict) and isinstance(item.get("content"), str) and item.get("role") in ("system", "user"):
        return [Message(item["role"], item["content"])]
    try:
        text = msgspec.json.encode(item, enc_hook=str).decode()
    except Exception:  # noqa: BLE001 - whatever it is
        text = type(item).__name__
    return [Message("user", text.replace("\0", "")[:_SHOWN_CHARACTERS])]


def _canonical(value: Any) -> bytes:
    """The same bytes for the same content, whatever order a set or a dict has it in."""
    if isinstance(value, dict):
        return b"{%b}" % b",".join(
            sorted(b"%b:%b" % (_canonical(key), _canonical(each)) for key, each in value.items())
        )
    if isinstance(value, set | frozenset):
        return b"<%b>" % b",".join(sorted(map(_canonical, value)))
    if isinstance(value, list | tuple):
        return b"[%b]" % b",".join(map(_canonical, value))
    if value is None or isinstance(value, str | bytes | int | float | bool):
        return repr(value).encode(errors="replace")
    if hasattr(value, "__dict__"):
        return type(value).__qualname__.encode() + _canonical(vars(value))
    return repr(value).encode(errors="replace")
