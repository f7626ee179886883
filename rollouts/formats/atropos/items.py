"""The body of `/scored_data`: decoded fast when it is exactly right, and by the rules of Atropos' own server otherwise.

    bytes ─► simdjson, numbers only ──────┬─► Item
        ├──► msgspec, strict ─────────────┤
        └──► json, then pydantic, lax ────┴─► or the faults that FastAPI would find

Numbers become arrays or lists; what is only kept and given back stays the JSON text that was sent.
"""

import builtins
import json
import types
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model, field_validator

from rollouts.formats.atropos import numbers
from rollouts.formats.atropos.bodies import MAX_ECHO, validated

Rows = list[list[int]]
Floats = list[list[float]]
NULL = msgspec.Raw(b"null")


class Item(msgspec.Struct):
    """One scored group as an environment sends it, and as it is given out: G sequences, always all keys.

    Rows of numbers may be `numbers.Flat` in one that came, and are arrays in one that is given out.
    """

    tokens: Rows
    masks: Rows
    """Labels: the token id where it is trained on, else -100."""
    scores: list[float]
    advantages: Floats | None = None
    ref_logprobs: Floats | None = None
    messages: msgspec.Raw = NULL
    generation_params: msgspec.Raw = NULL
    inference_logprobs: Floats | None = None
    overrides: msgspec.Raw = NULL
    group_overrides: msgspec.Raw = NULL
    images: msgspec.Raw = NULL
    env_id: int | None = None
    distill_token_ids: list[Rows] | None = None
    """[sequence][position][top_k]."""
    distill_logprobs: list[Floats] | None = None


KEYS = Item.__struct_fields__
"""The 14 keys of an item, in the order in which they are sent."""

_SHAPES: dict[str, msgspec.json.Decoder[Any]] = {
    "messages": msgspec.json.Decoder(list[list[dict[str, Any]]]),
    "generation_params": msgspec.json.Decoder(dict[str, Any]),
    "overrides": msgspec.json.Decoder(list[dict[str, Any]]),
    "group_overrides": msgspec.json.Decoder(dict[str, Any]),
    "images": msgspec.json.Decoder(),
}
_ONE = msgspec.json.Decoder(Item)
_MANY = msgspec.json.Decoder(list[Item])


class LaxScoredData(BaseModel):
    """A scored group as Atropos declares it: decides what is coerced, and how a fault is told."""

    model_config = ConfigDict(allow_inf_nan=False)

    tokens: Rows
    masks: Rows
    scores: list[float]
    advantages: Floats | None = None
    ref_logprobs: Floats | None = None
    messages: list[list[dict[str, Any]]] | None = None
    generation_params: dict[str, Any] | None = None
    inference_logprobs: Floats | None = None
    overrides: list[dict[Any, Any]] | None = None
    group_overrides: dict[Any, Any] | None = None
    images: Any | None = None
    env_id: int | None = None
    distill_token_ids: list[Rows] | None = None
    distill_logprobs: list[Floats] | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _have_role_and_content(cls, value: Any) -> Any:
        try:
            for row in value or ():
                for message in row:
                    if "role" not in message or "content" not in message:
                        raise ValueError("Message must have 'role' and 'content' fields")
        except TypeError:  # it has another shape; pydantic names the place
            pass
        return value


def _impatient(kind: Any) -> Any:
    """The type with lists that end at their first fault: a large body may hold a million."""
    kinds = tuple(map(_impatient, get_args(kind)))
    match get_origin(kind):
        case types.UnionType:
            return Union[kinds]  # noqa: UP007 - of as many as there are
        case builtins.list:
            return Annotated[list[kinds], Field(fail_fast=True)]  # type: ignore[valid-type]
        case _:
            return kind


_fields: Any = {name: (_impatient(each.annotation), each) for name, each in LaxScoredData.model_fields.items()}
LargeScoredData: type[LaxScoredData] = create_model("LargeScoredData", __base__=LaxScoredData, **_fields)
_LAX_ONE, _LAX_MANY = TypeAdapter(LaxScoredData), TypeAdapter(list[LaxScoredData])
_LARGE_ONE: TypeAdapter[LaxScoredData] = TypeAdapter(LargeScoredData)
_LARGE_MANY: TypeAdapter[list[LaxScoredData]] = TypeAdapter(_impatient(list[LargeScoredData]))


def decode_one(body: bytes, *, is_json: bool = True) -> Item:
    """One group. Raises Invalid or Malformed."""
    if is_json and _is_text(body):
        try:
            values = numbers.parse(body)
            if values is not None:
                raws = {key: msgspec.Raw(values[key]) for key in numbers.SMALL_OBJECTS if key in values}
                return _checked(Item(**values | raws))
            return _checked(_ONE.decode(body))
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            pass
    return _from_lax(validated(_LAX_ONE if len(body) <= MAX_ECHO else _LARGE_ONE, body, is_json=is_json))


def decode_many(body: bytes, *, is_json: bool = True) -> list[Item]:
    """A list of groups, perhaps empty. Raises Invalid or Malformed."""
    if is_json and _is_text(body):
        try:
            return [_checked(item) for item in _MANY.decode(body)]
        except (ValueError, RecursionError):
            pass
    items = validated(_LAX_MANY if len(body) <= MAX_ECHO else _LARGE_MANY, body, is_json=is_json)
    return [_from_lax(item) for item in items]


def _is_text(body: bytes) -> bool:
    """Whether it is UTF-8: what stays as it was sent is not looked at again before it is given back."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _checked(item: Item) -> Item:
    """The item, if what was left as text has the right shape. Raises ValueError."""
    for key, decoder in _SHAPES.items():
        raw = getattr(item, key)
        if raw == NULL:
            continue
        value = decoder.decode(raw)
        if key == "messages" and not all({"role", "content"} <= each.keys() for row in value for each in row):
            raise ValueError("a message without role or content")
    return item


def _from_lax(lax: LaxScoredData) -> Item:
    values = dict(lax)
    for key in _SHAPES:
        values[key] = NULL if values[key] is None else msgspec.Raw(json.dumps(values[key]).encode())
    return Item(**values)
