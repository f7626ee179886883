"""One group, written as each wire writes it: what a case of the corpus is before and after it is sent.

the group as plain data ─┬─► JSON         POST /api/v1/runs/<key>/groups   lists of numbers
                         ├─► MESSAGEPACK  the same                         lists of numbers
                         ├─► PACKED       the same                         little-endian bytes
                         └─► ATROPOS      POST /atropos/<key>/scored_data  rows of all rollouts, labels for masks
"""

import json
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from rollouts.formats.atropos.extras import IGNORED

Data = Any
"""What JSON can say, and `Literal` for what no encoder would write."""


class Wire(StrEnum):
    """How a group reaches the server."""

    JSON = "json"
    MESSAGEPACK = "messagepack"
    PACKED = "packed"
    ATROPOS = "atropos"

    @property
    def content_type(self) -> str:
        return "application/msgpack" if self in {Wire.MESSAGEPACK, Wire.PACKED} else "application/json"


@dataclass(frozen=True)
class Literal:
    """Bytes that stand where a value would: in JSON, and in MessagePack if there is such a thing."""

    json: bytes | None = None
    msgpack: bytes | None = None


class Unwritable(Exception):
    """The wire has no way to say it."""


PER_TOKEN = {
    "token_ids": "<u4",
    "loss_mask": "u1",
    "inference_logprobs": "<f4",
    "ref_logprobs": "<f4",
    "advantages": "<f4",
}
ROWS = {
    "token_ids": "tokens",
    "loss_mask": "masks",
    "reward": "scores",
    "inference_logprobs": "inference_logprobs",
    "ref_logprobs": "ref_logprobs",
    "advantages": "advantages",
    "messages": "messages",
}
"""The native name of what a rollout has -> the name of its column in an Atropos item."""
ITEM = "item"
"""Key of a group under which lie columns of an Atropos item that are no rollout's."""
NUMBERS = {int, float}


def written(wire: Wire, group: Data) -> bytes | None:
    """The body that says this; None when the wire cannot."""
    try:
        match wire:
            case Wire.JSON:
                return json_of(_native(group))
            case Wire.MESSAGEPACK:
                return messagepack_of(_native(group))
            case Wire.PACKED:
                return messagepack_of(packed(_native(group)))
            case Wire.ATROPOS:
                return json_of(item_of(group))
    except Unwritable:
        return None


def _native(group: Data) -> Data:
    """Without what only an Atropos item has."""
    return {name: each for name, each in group.items() if name != ITEM} if isinstance(group, dict) else group


def listed(wire: Wire, bodies: list[bytes]) -> bytes:
    """The list of at most 65,535 bodies."""
    if "msgpack" in wire.content_type:
        return b"\xdc" + struct.pack(">H", len(bodies)) + b"".join(bodies)
    return b"[" + b",".join(bodies) + b"]"


def json_of(value: Data) -> bytes:
    """JSON with what JSON forbids: NaN, infinities, numbers of any length, lone surrogates. Raises Unwritable."""
    literals: list[bytes] = []

    def literal(each: Any) -> str:
        if not isinstance(each, Literal) or each.json is None:
            raise Unwritable
        literals.append(each.json)
        return f"@literal {len(literals) - 1}@"

    try:
        body = json.dumps(value, default=literal, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        literals.clear()
        body = json.dumps(value, default=literal).encode()
    for index, text in enumerate(literals):
        body = body.replace(f'"@literal {index}@"'.encode(), text)
    return body


def messagepack_of(value: Data) -> bytes:
    """MessagePack with what it forbids: text that is no UTF-8. Raises Unwritable."""
    try:
        return msgspec.msgpack.encode(_sayable(value))
    except OverflowError:  # an integer of more than 64 bits
        raise Unwritable from None


def _sayable(value: Data) -> Any:
    if isinstance(value, Literal):
        if value.msgpack is None:
            raise Unwritable
        return msgspec.Raw(value.msgpack)
    if isinstance(value, str):
        raw = value.encode(errors="surrogatepass")
        return value if raw.isascii() else msgspec.Raw(b"\xdb" + struct.pack(">I", len(raw)) + raw)
    if isinstance(value, dict):
        return {key: _sayable(each) for key, each in value.items()}
    if isinstance(value, list) and not NUMBERS.issuperset(map(type, value)):
        return [_sayable(each) for each in value]
    return value


def packed(group: Data) -> Data:
    """The group with bytes for its numbers. Raises Unwritable where these are none, or fit no 32 bits."""
    if not isinstance(group, dict) or not isinstance(group.get("rollouts"), list):
        return group
    return group | {"rollouts": [_packed(rollout) for rollout in group["rollouts"]]}


def _packed(rollout: Data) -> Data:
    if not isinstance(rollout, dict):
        return rollout
    arrays = {name: _bytes(rollout[name], kind) for name, kind in PER_TOKEN.items() if name in rollout}
    return rollout | arrays


def _bytes(values: Data, kind: str) -> Data:
    if isinstance(values, bytes) or not isinstance(values, list):
        return values
    kinds = set(map(type, values))
    if not kinds <= NUMBERS:
        raise Unwritable
    if kind == "<f4":
        with np.errstate(over="ignore"):
            return np.array(list(map(float, values)), "<f8").astype(kind).tobytes()
    size = 8 * np.dtype(kind).itemsize
    if float in kinds or (values and not -(2 ** (size - 1)) <= min(values) <= max(values) < 2**size):
        raise Unwritable
    return np.array([each % 2**size for each in values] if values and min(values) < 0 else values, kind).tobytes()


def item_of(group: Data) -> Data:
    """The Atropos item that says the same. Raises Unwritable for a group that is not built of rollouts."""
    if not isinstance(group, dict):
        return group
    rollouts = group.get("rollouts")
    if not isinstance(rollouts, list) or not all(isinstance(each, dict) for each in rollouts):
        return {"tokens": rollouts, "masks": rollouts, "scores": rollouts} | group.get(ITEM, {})
    item: dict[str, Any] = {}
    for name, column in ROWS.items():
        rows = [_labels(each) if name == "loss_mask" else each[name] for each in rollouts if name in each]
        if rows or name in {"token_ids", "loss_mask", "reward"}:
            item[column] = rows
    return item | group.get(ITEM, {})


def _labels(rollout: dict[str, Any]) -> Data:
    """Masks as Atropos has them: the token where it is trained on, else -100. What is neither 0 nor 1 stays."""
    masks, tokens = rollout["loss_mask"], rollout.get("token_ids")
    if not isinstance(masks, list):
        return masks
    if not isinstance(tokens, list):
        tokens = []
    tokens = [*tokens, *[1] * len(masks)]
    return [
        token if mask is not True and mask == 1 else IGNORED if mask is not False and mask == 0 else mask
        for token, mask in zip(tokens, masks, strict=False)
    ]
