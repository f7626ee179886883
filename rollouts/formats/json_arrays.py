"""JSON of values that hold numpy arrays, without making a Python number of each entry.

A float32 is printed as the shortest decimal that reads back as the same float32: -0.7, as a client sent it, where the
float64 of the same value is -0.699999988079071. NaN and infinities are null.
"""

from typing import Any

import msgspec
import orjson

from rollouts.formats.arrays import Array


def encode(value: Any) -> bytes:
    """Lists, dicts, arrays, structs and raw JSON text as compact JSON. Arrays are C-contiguous."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)


def decimals(array: Array) -> list[Any]:
    """The numbers of a float32 array as Python floats that any encoder prints in that shortest form."""
    numbers: list[Any] = orjson.loads(encode(array))
    return numbers


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return orjson.Fragment(bytes(value))
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    raise TypeError(type(value).__name__)
