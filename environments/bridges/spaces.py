"""Gymnasium's spaces as text: what is observed is written, what the policy writes is read.

    Text              the text itself
    Discrete          a whole number, or the name that the arguments give it
    MultiDiscrete, MultiBinary, Box of few numbers        JSON lists, shaped as they are
    Tuple, Dict of these                                  JSON lists, objects

`Graph`, `Sequence`, `OneOf`, larger boxes and spaces of others are refused. Needs gymnasium once it is called.
"""

import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from environments.bridges.stepped import InvalidAction

MOST_NUMBERS = 64
"""Of a box: more are a picture, and no text."""
_DIGITS = 4
"""Significant ones of what is observed."""


def check(space: Any, where: str) -> None:
    """Raise ValueError for a space that is no text, naming it."""
    spaces = import_module("gymnasium.spaces")
    match space:
        case spaces.Text() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return
        case spaces.Box() if space.dtype.kind not in "fiub" or _size(space) > MOST_NUMBERS:
            raise ValueError(
                f"{where} {space} has {_size(space)} numbers: a bridge writes up to {MOST_NUMBERS} as text"
            )
        case spaces.Box():
            return
        case spaces.Dict():
            for key, inner in space.spaces.items():
                check(inner, f"{where}.{key}")
        case spaces.Tuple():
            for number, inner in enumerate(space.spaces):
                check(inner, f"{where}[{number}]")
        case _:
            raise ValueError(f"{where} {space} is a {type(space).__name__}, which has no form as text")


def written(space: Any, value: Any) -> str:
    """An observation as text."""
    plain = _plain(space, value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def read(space: Any, text: str, names: Sequence[str] = ()) -> Any:
    """Return the action that a text means. Raises InvalidAction.

    `names`: what the actions of a Discrete space are called, from its first on.
    """
    spaces = import_module("gymnasium.spaces")
    if isinstance(space, spaces.Text):
        value: Any = text
    elif names and text in names:
        return space.dtype.type(int(space.start) + names.index(text))
    else:
        try:
            value = _value(space, json.loads(text))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            value = None
    if value is None or not space.contains(value):
        raise InvalidAction(f"{text[:200]!r} is not an action. {described(space, names)}")
    return value


def described(space: Any, names: Sequence[str] = ()) -> str:
    """What an action is, in a sentence."""
    return f"An action is {', '.join(names[:-1]) + ' or ' + names[-1] if len(names) > 1 else _described(space)}."


def _described(space: Any) -> str:
    spaces = import_module("gymnasium.spaces")
    match space:
        case spaces.Text():
            return f"a text of {space.min_length} to {space.max_length} characters of {space.characters!r}"
        case spaces.Discrete():
            return f"a whole number from {space.start} to {space.start + space.n - 1}"
        case spaces.MultiDiscrete():
            start, end = space.start.tolist(), (space.start + space.nvec - 1).tolist()
            return f"a JSON list of whole numbers, each from what {start} has in its place to what {end} has"
        case spaces.MultiBinary():
            return f"a JSON list of zeros and ones of shape {list(space.shape)}"
        case spaces.Box():
            low, high = _rounded(space.low.tolist()), _rounded(space.high.tolist())
            return f"a JSON list of numbers of shape {list(space.shape)}, from {low} to {high}"
        case spaces.Dict():
            return "a JSON object: " + "; ".join(f"{key!r} {_described(each)}" for key, each in space.spaces.items())
        case _:
            return "a JSON list: " + "; ".join(_described(each) for each in space.spaces)


def _plain(space: Any, value: Any) -> Any:
    spaces = import_module("gymnasium.spaces")
    match space:
        case spaces.Text():
            return str(value)
        case spaces.Dict():
            return {key: _plain(inner, value[key]) for key, inner in space.spaces.items()}
        case spaces.Tuple():
            return [_plain(inner, each) for inner, each in zip(space.spaces, value, strict=True)]
        case _:
            return _rounded(value.tolist() if hasattr(value, "tolist") else value)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _value(space: Any, plain: Any) -> Any:
    """What gymnasium calls the value. Raises ValueError, TypeError, KeyError, OverflowError."""
    numpy, spaces = import_module("numpy"), import_module("gymnasium.spaces")
    match space:
        case spaces.Text():
            return plain
        case spaces.Dict():
            if not isinstance(plain, dict) or plain.keys() != space.spaces.keys():
                raise ValueError("other keys")
            return {key: _value(inner, plain[key]) for key, inner in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_value(inner, each) for inner, each in zip(space.spaces, plain, strict=True))
        case spaces.Discrete():
            if type(plain) is not int:
                raise ValueError("not a whole number")
            return space.dtype.type(plain)
    given = numpy.asarray(plain)
    # Else 1.7 would be 1, and true a number.
    if given.dtype.kind not in ("if" if space.dtype.kind == "f" else "i") or not numpy.isfinite(given).all():
        raise ValueError("other numbers")
    return given.astype(space.dtype)


def _size(space: Any) -> int:
    size = 1
    for length in space.shape:
        size *= length
    return size
