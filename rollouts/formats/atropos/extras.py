"""What the columns of the store cannot hold of an item: one MessagePack map beside the group's token arrays.

Defaults are what nearly every group has, and what a group that came another way gets when it is given out as an item.
"""

import json
from typing import Any

import msgspec
import numpy as np

from environments.overrides import ZEROED, asked, asked_of_group, is_given
from rollouts.formats.arrays import COUNT, Array
from rollouts.formats.checks import LOGPROB_SLACK
from rollouts.storable import displayable

IGNORED = -100
"""Mask of a token that is not trained on; of all others the mask is the token's id."""
FILL = 1.0
"""What Atropos' environments put for the logprob of a token that the policy did not sample."""

MAX_NAMES = 5
MAX_NAME = 100
"""Of what an override asks for, as far as a refusal repeats it."""

INT = np.dtype("<i4")
FLOAT = np.dtype("<f4")


class Ragged(msgspec.Struct, array_like=True, frozen=True):
    """Numbers [sequence][position][top_k], ragged in position only."""

    lengths: bytes
    """u32: positions of each sequence."""
    top_k: int
    numbers: bytes
    """i32 or f32."""


class Extras(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The rest of an item."""

    env_id: int | None = None
    has_binary_masks: bool = False
    """Masks are 0 and 1 instead."""
    masks: bytes | None = None
    """i32 [N], when they are of neither kind."""
    inference_fill: float | bytes | None = FILL
    """Inference logprob of every token that is not trained on; f32 [N] as sent if they differ; None: not sent."""
    ref_fill: float | bytes = FILL
    """The same of the reference logprobs."""
    advantages: bytes | None = None
    """f32 [N], when overrides set some of them to 0."""
    has_messages: bool = True
    distill_token_ids: Ragged | None = None
    distill_logprobs: Ragged | None = None
    json: dict[str, bytes] = {}
    """Key of the item -> the JSON text it was sent as, for what fits no array and no column."""

    def pack(self) -> bytes:
        return _encoder.encode(self)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Extras)


def unpack(data: bytes | memoryview | None) -> Extras:
    """The rest of a group's item; a group that came another way has none."""
    return Extras() if data is None else _decoder.decode(data)


def lacks_logprobs(extras: bytes | memoryview | None, loss_mask: Array) -> str:
    """What is wrong with the inference logprobs that an item came with; "" if a loss may compare with them.

    Its columns do not tell: what was not sent is 0 there, and so is what was above 0.
    """
    sent = unpack(extras).inference_fill
    if sent is None:
        return "has none"
    if isinstance(sent, bytes) and (np.frombuffer(sent, FLOAT)[loss_mask.view(np.bool_)] > LOGPROB_SLACK).any():
        return "is above 0 where the mask trains"
    return ""


def parsed(text: bytes | memoryview) -> Any:
    """JSON that was kept as it was sent."""
    try:
        return msgspec.json.decode(text)
    except ValueError:  # it holds lone surrogates, which Python can
        return json.loads(bytes(text))


def zeroed_by(overrides: bytes | memoryview | None) -> frozenset[int]:
    """Positions of the rollouts whose advantage is to be 0, from the JSON of an item's overrides."""
    if overrides is None:
        return frozenset()
    return frozenset(at for at, each in enumerate(parsed(overrides) or ()) if each.get(ZEROED))


def zeroed(extras: bytes | memoryview | None) -> frozenset[int]:
    """The same of a stored group. A group that came another way has none."""
    return zeroed_by(unpack(extras).json.get("overrides"))


def ignored(extras: bytes | memoryview | None, count: int) -> dict[str, str]:
    """Key of the item -> why a trainer of ours cannot do as the sender of these ``count`` rollouts asked."""
    rest = unpack(extras)

    def sent(key: str) -> Any:
        return parsed(rest.json[key]) if key in rest.json else None

    found: dict[str, str] = {}
    overrides = sent("overrides") or []
    names = asked(overrides)
    if names and len(overrides) != count:
        found["overrides"] = f"It has {len(overrides)} overrides for {count} rollouts"
    for key, unknown in (
        ("overrides", [name for name in names if name != ZEROED]),
        ("group_overrides", asked_of_group(sent("group_overrides") or {})),
    ):
        if unknown:
            named = ", ".join(displayable(name[:MAX_NAME]) for name in unknown[:MAX_NAMES])
            found[key] = f"It asks for the {key} {named}, which only a trainer of Atropos knows"
    found |= {
        key: f"Its {key} are not one number per token" for key in ("advantages", "ref_logprobs") if is_given(sent(key))
    }
    for key, ragged in (
        ("images", None),
        ("distill_token_ids", rest.distill_token_ids),
        ("distill_logprobs", rest.distill_logprobs),
    ):
        if (ragged is not None and ragged.numbers) or is_given(sent(key)):
            found[key] = f"It has {key}, which only a trainer of Atropos knows"
    return found


def pack_ragged(rows: list[list[list[Any]]], numbers: bytes) -> Ragged | None:
    """The packed form, unless positions differ in their number of entries. ``numbers`` are the rows', end to end."""
    widths = {len(entries) for row in rows for entries in row}
    if len(widths) != 1:
        return None
    return Ragged(np.array([len(row) for row in rows], COUNT).tobytes(), widths.pop(), numbers)


def unpack_ragged(ragged: Ragged, dtype: "np.dtype[Any]") -> list[Array]:
    """The rows as they were sent, each [position, top_k]."""
    lengths = np.frombuffer(ragged.lengths, COUNT).tolist()
    entries: Array = np.frombuffer(ragged.numbers, dtype)
    return cut(entries.reshape(sum(lengths), ragged.top_k), lengths)


def cut(values: Array, lengths: list[int]) -> list[Array]:
    """An array in consecutive parts of these lengths, without a copy."""
    parts, at = [], 0
    for length in lengths:
        parts.append(values[at : at + length])
        at += length
    return parts
