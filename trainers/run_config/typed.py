"""What people type as TOML or JSON, read within bounds: whoever reads a config recursively must be able to."""

import json
import re
import tomllib
from typing import Any

MAX_DEPTH = 32
MAX_KEYS = 1_000
MAX_CHARACTERS = 64_000
MAX_BITS = 64
"""Of an integer: no wire carries a longer one, and of much longer ones Python does not write the digits."""
MAX_TOML = 16_000
"""Characters of TOML: its parser is written in Python. A config that names every key has 3,000."""
_ASIDE = re.compile(
    r'''(?s:\#[^\n]*+
    | """(?:[^"\\]|\\.|"(?!""))*+"{0,5}
    | \'{3}(?:[^']|'(?!''))*+'{0,5}
    | "(?:[^"\\\n]|\\.)*+"?
    | '[^'\n]*+'?)''',
    re.VERBOSE,
)
"""A comment or a string of TOML, to where the parser would take it; it reads nothing behind one without an end."""
_BETWEEN_KEYS = re.compile(r"[\n=,\[\]{}]")


def read_table(text: str) -> dict[str, Any]:
    """A TOML document. Raises ValueError in words for what is none, or too deep or too large."""
    try:
        return bounded(_parse(text))
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from None


def read_value(text: str) -> Any:
    """A value in JSON or TOML: presets have the one, people know the other. Raises ValueError as `read_table`."""
    try:
        try:
            return bounded(json.loads(text))
        except json.JSONDecodeError:
            return bounded(_parse(f"value = {text}")["value"])
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from None


def bounded(value: Any) -> Any:
    """The value, unless something in it could not be walked through, written down or sent."""
    left, keys = [(value, 0)], 0
    while left:
        node, depth = left.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(node, dict):
            keys += len(node)
            left += [(part, depth + 1) for pair in node.items() for part in pair]
        elif isinstance(node, list):
            left += [(part, depth + 1) for part in node]
        elif isinstance(node, str):
            _check_text(node)
        elif isinstance(node, int) and node.bit_length() > MAX_BITS:
            raise ValueError(f"a number in it has more than {MAX_BITS} bits")
        if keys > MAX_KEYS:
            raise ValueError(f"it has more than {MAX_KEYS} keys")
    return value


def _parse(text: str) -> dict[str, Any]:
    """Read TOML. The parser takes the square of a key's parts in time, so those are counted before it sees them."""
    if len(text) > MAX_TOML:
        raise ValueError(f"it has more than {MAX_TOML} characters")
    if any(piece.count(".") >= MAX_DEPTH for piece in _BETWEEN_KEYS.split(_ASIDE.sub("", text))):
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    return tomllib.loads(text)


def _check_text(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"a text in it has more than {MAX_CHARACTERS} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text in it has half a character (a lone surrogate)") from None
