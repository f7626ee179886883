"""What somebody launches, out of a seed: keys that a run config has, or none has, with values that nobody means."""

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.hostile.texts import TEXTS
from trainers.run_config.keys import all_keys

KEYS = tuple(all_keys())
SECTIONS = tuple({key.rpartition(".")[0] or key: None for key in KEYS})
TIMES = (1, 2, 31, 32, 33, 300, 5000)
"""How often something is repeated: within the bounds, at them and beyond."""
GOOD = ("1", "2", "0.5", "true", "false", '"cpu"', '"reverse_text"', '"float32"', "[1, 2]", "{words = 3}")
ODD = (
    *("0", "-1", "2147483648", "9223372036854775808", "9" * 400, "9" * 5000, "0x" + "f" * 5000, "1_0", "+1", "00"),
    *("1e308", "1e999", "-0.0", "nan", "-inf", "1e-400", "1." + "9" * 5000, "1979-13-40", "1979-05-27T07:32:00Z"),
    *(
        "9999-12-31T23:59:60-23:59",
        "10:00:00",
        "''",
        '"\\u0000"',
        '"\\ud800"',
        '"\\U00110000"',
        '"\\x"',
        "null",
        "",
        "=",
    ),
)
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 0.5, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"), None, True, False, [], {}, [[]], ""),
    *("cpu", "reverse_text", {"type": "custom", "path": "os.system"}, {"a.b": 1}, [{"name": "reverse_text"}], [None]),
)
MOST_BYTES = 18_000
"""Of TOML; a little more than is taken."""


def toml(draw: random.Random, names: Sequence[str]) -> bytes:
    """Statements, most of them TOML; of ``names`` some stand where a name may."""
    text = "\n".join(_statement(draw, names) for _ in range(draw.choice((1, 1, 1, 2, 3, 9))))
    raw = text.encode("utf-8", "surrogatepass")[:MOST_BYTES]
    if draw.random() < 0.1:
        at = draw.randrange(len(raw) + 1)
        raw = raw[:at] + draw.randbytes(draw.randint(1, 8)) + raw[at:]
    return raw


def body(draw: random.Random, names: Sequence[str], presets: Sequence[str]) -> bytes:
    """A launch over the API: JSON with the fields that it has."""
    sent: dict[str, Any] = {"preset": draw.choice(presets) if draw.random() < 0.9 else _value(draw, names)}
    if draw.random() < 0.6:
        pairs = [(_key(draw), _value(draw, names)) for _ in range(draw.choice((1, 1, 2, 9)))]
        sent["overrides"] = dict(pairs)
    if draw.random() < 0.4:
        sent["config"] = _nested(draw, names)
    for field in ("fork_from", "project", "fork_optimizer"):
        if draw.random() < 0.1:
            sent[field] = draw.choice(names) if draw.random() < 0.5 else _value(draw, names)
    if draw.random() < 0.05:
        sent["overrides"] = {f"{_key(draw)}{number}": number for number in range(draw.choice(TIMES))}
    return json.dumps(sent).encode()


def _statement(draw: random.Random, names: Sequence[str]) -> str:
    kind = draw.random()
    if kind < 0.65:
        return f"{_key(draw)} = {_typed(draw, names)}"
    if kind < 0.8:
        header = draw.choice(("[{}]", "[[{}]]", "[ {} ]", "[{}")).format(_key(draw))
        return f"{header}\n{draw.choice(('a', 'lr', 'name', 'type', 'path', 'b.c'))} = {_typed(draw, names)}"
    if kind < 0.95:
        shape = draw.choice(
            ("{}.", "[{}]\n", "[[{}]]\n", "{} = 1\n", "a = [[", "a = {{{} = ", "{0}.{0} = {{}}\n", "#\n")
        )
        return shape.format(_key(draw)) * draw.choice(TIMES)
    return draw.choice(list(TEXTS.values()))


def _key(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.6:
        return draw.choice(KEYS)
    if kind < 0.7:
        return f"{draw.choice(SECTIONS)}.{draw.choice(('a', '0', '99', '', '-', ' b ', 'type'))}"
    if kind < 0.85:
        return draw.choice((".", " . ", '."".', ".'#'.")).join(draw.choice(KEYS).split("."))
    return draw.choice(("a.", '"a" . ', "''.", "0.")) * draw.choice(TIMES) + "a"


def _typed(draw: random.Random, names: Sequence[str], depth: int = 0) -> str:
    """A value of TOML, or almost."""
    kind = draw.random()
    if kind < 0.45:
        return draw.choice(GOOD)
    if kind < 0.6:
        return draw.choice(ODD)
    if kind < 0.8 or depth > 3:
        text = draw.choice(names) if draw.random() < 0.4 else draw.choice(list(TEXTS.values()))
        return draw.choice((json.dumps(text), json.dumps(text), f"'{text}'", f"'''{text}'''", f'"""{text}"""'))
    if kind < 0.9:
        inside = [_typed(draw, names, depth + 1) for _ in range(draw.randint(0, 3))]
        return f"[{', '.join(inside)}]" if draw.random() < 0.5 else "[" + ", ".join(["1"] * draw.choice(TIMES)) + "]"
    if kind < 0.97:
        return f"{{{', '.join(f'{_key(draw)} = {_typed(draw, names, depth + 1)}' for _ in range(draw.randint(0, 2)))}}}"
    times = draw.choice(TIMES)
    return draw.choice(("[" * times + "]" * times, "{a = " * times + "1" + "}" * times))


def _value(draw: random.Random, names: Sequence[str]) -> Any:
    kind = draw.random()
    if kind < 0.6:
        return draw.choice(VALUES)
    return draw.choice(names) if kind < 0.7 else draw.choice(list(TEXTS.values()))


def _nested(draw: random.Random, names: Sequence[str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for _ in range(draw.choice((1, 2, 5))):
        value = _value(draw, names)
        for part in reversed(_key(draw).split(".")[:60]):
            value = [value] if part == "0" else {part: value}
        tree |= value if isinstance(value, dict) else {"environments": value}
    return tree
