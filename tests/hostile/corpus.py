"""The corpus: bad input, and odd input that is good, as data. Every past bug adds a line.

Each wire that can say it sends it, and refuses it unless the case is marked as taken there. A refusal leaves no row;
what is taken is stored whole and given back as it came.
"""

from tests.hostile.case import (
    ATROPOS,
    COLUMNS,
    EVERYWHERE,
    MISSING,
    NATIVE,
    Case,
    Later,
    good,
    refused,
    taken,
    tokens,
)
from tests.hostile.texts import NAMELESS, TEXTS, UNSAYABLE
from tests.hostile.wires import ITEM, Data, Literal, Wire

FIRST = "rollouts.0"
EACH = "rollouts.*"
MESSAGE = "rollouts.0.messages.0"


def deep(levels: int) -> Literal:
    """Lists in lists."""
    return Literal(b"[" * levels + b"]" * levels, b"\x91" * levels + b"\xc0")


def deep_objects(levels: int) -> Literal:
    return Literal(b'{"a":' * levels + b"0" + b"}" * levels, b"\x81\xa1a" * levels + b"\xc0")


DIGITS = Literal(b"9" * 4301)
"""A number that Python itself refuses to read."""
WRONG_KINDS: dict[str, Data] = {
    "null": None,
    "a number": 7,
    "a fraction": 7.5,
    "a bool": True,
    "text": "text",
    "an object": {},
    "an object of objects": {"a": {"b": {}}},
    "a list of lists": [[[]]],
    "a list of nulls": [None, None, None, None],
    "100,000 lists deep": deep(100_000),
    "100,000 objects deep": deep_objects(100_000),
    "900 lists deep": deep(900),
    "digits": DIGITS,
}
BODIES: dict[str, Data] = {
    "nothing": Literal(b"", b""),
    "space": Literal(b" \n\t"),
    "NUL": Literal(b"\0", b"\0"),
    "not JSON": Literal(b"hello"),
    "one bracket": Literal(b"["),
    "one quote": Literal(b'"'),
    "two groups without a list": Literal(b"{}{}", b"\x80\x80"),
    "UTF-16": Literal('{"environment": "e"}'.encode("utf-16")),
    "BOM": Literal(b"\xef\xbb\xbf{}"),
    "a reserved byte": Literal(msgpack=b"\xc1"),
    "a list of 4 G entries": Literal(msgpack=b"\xdd\xff\xff\xff\xff"),
    "an object of 4 G entries": Literal(msgpack=b"\xdf\xff\xff\xff\xff"),
    "4 GB of bytes": Literal(msgpack=b"\xc6\xff\xff\xff\xff"),
    "an extension": Literal(msgpack=b"\xc7\x04\x01abcd"),
    "a time stamp": Literal(msgpack=b"\xd6\xff\0\0\0\0"),
    "a key that is no text": Literal(b"{1:2}", b"\x81\x01\x02"),
    "a comment": Literal(b"/* */ {}"),
    "100,000 unknown keys": Later(lambda: {f"k{number}": 0 for number in range(100_000)}),
    "a list of a list": [[]],
    "a list of null": [None],
    "text of JSON": '{"environment": "e"}',
}

LARGE: dict[str, Data] = {
    "a million keys": Later(lambda: {f"k{number}": 0 for number in range(1_000_000)}),
    "20,000 rollouts": Later(lambda: good(rewards=(0.0,) * 20_000)),
}

SHAPES = [
    refused("shapes", "", BODIES | WRONG_KINDS),
    Case("shapes", "large", {name: (("", value),) for name, value in LARGE.items()}, is_large=True),
    refused("shapes", "rollouts", {"missing": MISSING, "empty": [], **WRONG_KINDS}),
    taken("shapes", "rollouts", {"one": good(rewards=(0.5,))["rollouts"]}, EVERYWHERE),
    taken("shapes", "rollouts", {"1024": Later(lambda: good(rewards=(1.0, 0.0) * 512)["rollouts"])}, EVERYWHERE),
    refused("shapes", "rollouts", {"1025": Later(lambda: good(rewards=(0.0,) * 1025)["rollouts"])}),
    refused("shapes", "rollouts", {"100,000 empty ones": Later(lambda: [{}] * 100_000)}),
    refused("shapes", f"{FIRST}.token_ids", {"missing": MISSING, "empty": [], **WRONG_KINDS}),
    refused("shapes", f"{FIRST}.loss_mask", {"missing": MISSING, "empty": [], **WRONG_KINDS}),
    refused("shapes", f"{FIRST}.inference_logprobs", {"missing": MISSING, "empty": [], **WRONG_KINDS}),
    refused("shapes", f"{FIRST}.messages", {"of text": ["a"], "without content": [{"role": "user"}]}),
    refused("shapes", f"{FIRST}.token_ids", {"one short": [65, 66, 67], "one long": [65, 66, 67, 68, 69]}),
    refused("shapes", f"{FIRST}.loss_mask", {"one short": [0, 0, 1], "one long": [0, 0, 1, 1, 1]}),
    refused("shapes", f"{FIRST}.inference_logprobs", {"one short": [0.0, 0.0, -0.5], "one long": [0.0] * 5}),
    refused("shapes", f"{FIRST}.token_ids", {"bytes of one": b"\1\0\0\0", "odd bytes": b"\1\0\0\0" * 4 + b"\0"}),
    refused("shapes", f"{FIRST}.loss_mask", {"bytes of one more": b"\1\1\1\1\1"}),
    refused("shapes", f"{FIRST}.advantages", {"in one of two": [0.5] * 4}, but=ATROPOS),
    taken("shapes", f"{EACH}.advantages", {"that do not add up to 0": [0.5, 0.0, -0.25, 1.0]}, COLUMNS),
    taken("shapes", f"{EACH}.ref_logprobs", {"per token": [0.0, 0.0, -0.25, -1.0]}, COLUMNS),
    Case("shapes", "no tokens", {"": tokens(0)}),
    Case("shapes", "tokens", {"one": tokens(1), "all masked": tokens(4, 0), "none masked": tokens(4)}, EVERYWHERE),
    Case("shapes", "100,000 tokens", {"": tokens(100_000)}, EVERYWHERE),
    Case("shapes", "a million tokens", {"": tokens(1_000_000)}, EVERYWHERE, is_large=True),
    Case("shapes", "more tokens than a rollout may have", {"": tokens(4_000_001)}, is_large=True),
    refused("shapes", "state", {"trained": "trained"}),
    taken("shapes", f"{ITEM}.state", {"trained": "trained"}, ATROPOS),
    taken("shapes", "problem_key", {"twice": Literal(b'"dog", "problem_key": "cat"')}, frozenset({Wire.JSON})),
    taken("shapes", f"{ITEM}.images", {"twice": Literal(b'1, "images": 2')}, ATROPOS),
    taken("shapes", f"{ITEM}.env_id", {"unknown": 99, "negative": -1, "the largest": 2**31 - 1, "text": "7"}, ATROPOS),
    refused("shapes", f"{ITEM}.env_id", {"2**31": 2**31, "2**63": 2**63, "2**70": 2**70, "text": "one", "list": [0]}),
    taken("shapes", f"{ITEM}.overrides", {"of one": [{"a": [1]}], "empty": []}, ATROPOS),
    refused("shapes", f"{ITEM}.overrides", {"an object": {}, "text": "x", "numbers": [1], "deep": deep(100_000)}),
    refused("shapes", f"{ITEM}.group_overrides", {"a list": [], "text": "x", "deep": deep_objects(100_000)}),
    refused("shapes", f"{ITEM}.generation_params", {"a list": [], "text": "x", "deep": deep_objects(100_000)}),
    taken("shapes", f"{ITEM}.images", {"any": {"": [None, True, "\0\ud800", 2**70, -0.0]}, "deep": deep(500)}, ATROPOS),
    refused("shapes", f"{ITEM}.images", {"5,000 deep": deep(5000), "100,000 deep": deep_objects(100_000)}),
    taken("shapes", f"{ITEM}.distill_token_ids", {"ragged": [[[1, 2], [3]], []], "even": [[[1], [2]]]}, ATROPOS),
    refused("shapes", f"{ITEM}.distill_token_ids", {"flat": [1], "too deep": [[[[1]]]], "2**31": [[[2**31]]]}),
    refused("shapes", f"{ITEM}.distill_logprobs", {"flat": [1.0], "1e39": [[[1e39]]], "null": [[[None]]]}),
]

NOT_NUMBERS: dict[str, Data] = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
    "1e999": Literal(b"1e999"),
    "-1e999": Literal(b"-1e999"),
    "1e308": 1e308,
    "1e39": 1e39,
    "text NaN": "NaN",
    "text Infinity": "-Infinity",
    "text": "high",
    "null": None,
    "list": [1.0],
    "object": {},
    "hexadecimal": Literal(b"0x1p3"),
    "a leading zero": Literal(b"01"),
    "no fraction": Literal(b"1."),
    "plus": Literal(b"+1"),
}
NOT_FINITE = {name: NOT_NUMBERS[name] for name in ("NaN", "Infinity", "-Infinity", "1e999")}
ODD_NUMBERS: dict[str, Data] = {
    "-0.0": -0.0,
    "1e-400": Literal(b"-1e-400"),
    "a subnormal": -5e-324,
    "a subnormal of 32 bits": -1e-45,
    "not of 32 bits": -0.1,
    "the largest": -3.4e38,
    "an integer": -1,
    "2000 digits": Literal(b"-0." + b"1" * 2000),
    "an exponent": Literal(b"-1E+2"),
}
TOO_LARGE = {"2**31": 2**31, "2**32": 2**32, "2**63": 2**63, "2**64": 2**64, "10**4300": Literal(b"1" + b"0" * 4300)}

NUMBERS = [
    refused("numbers", f"{FIRST}.reward", NOT_NUMBERS | {"digits": DIGITS, "missing": MISSING}),
    taken("numbers", f"{FIRST}.reward", ODD_NUMBERS, EVERYWHERE),
    taken("numbers", f"{FIRST}.reward", {"a bool": True, "text of a number": "0.5"}, ATROPOS),
    refused("numbers", f"{FIRST}.inference_logprobs.2", NOT_NUMBERS | {"digits": DIGITS}),
    taken("numbers", f"{FIRST}.inference_logprobs.2", ODD_NUMBERS | {"a hair above 0": 5e-4}, EVERYWHERE),
    taken("numbers", f"{FIRST}.inference_logprobs.2", {"above 0": 0.5, "a bool": True}, ATROPOS),
    taken("numbers", f"{FIRST}.inference_logprobs.0", {"above 0 where masked": 0.5}, ATROPOS),
    refused("numbers", f"{EACH}.advantages", {name: [0.0, 0.0, value, 0.0] for name, value in NOT_NUMBERS.items()}),
    taken("numbers", f"{EACH}.advantages", {name: [1.0, value, 0, 0] for name, value in ODD_NUMBERS.items()}, COLUMNS),
    refused("numbers", f"{EACH}.ref_logprobs", {name: [0.0, 0.0, value, 0.0] for name, value in NOT_NUMBERS.items()}),
    taken("numbers", f"{EACH}.ref_logprobs", {"above 0": [0.0, 0.0, 0.5, 0.0]}, ATROPOS),
    refused("numbers", f"{FIRST}.token_ids.2", {"-1": -1, "-2**31": -(2**31), "-2**70": -(2**70), **TOO_LARGE}),
    refused("numbers", f"{FIRST}.token_ids.2", {"null": None, "a fraction": 1.5, "list": [1], "1e300": 1e300}),
    refused("numbers", f"{FIRST}.token_ids.2", NOT_FINITE),
    taken("numbers", f"{FIRST}.token_ids.2", {"the largest": 2**31 - 1, "0": 0}, EVERYWHERE),
    taken("numbers", f"{FIRST}.token_ids.2", {"text": "1", "a bool": True, "a whole fraction": 67.0}, ATROPOS),
    refused("numbers", f"{FIRST}.loss_mask.2", {"null": None, "a fraction": 0.5, "text": "one", **TOO_LARGE}),
    taken("numbers", f"{FIRST}.loss_mask.2", {"2": 2, "-1": -1, "text of a number": "1", "a bool": True}, ATROPOS),
    refused("numbers", f"{FIRST}.metrics", {name: {"a": value} for name, value in NOT_NUMBERS.items()}),
    taken("numbers", f"{FIRST}.metrics", {name: {"a": value} for name, value in ODD_NUMBERS.items()}, NATIVE),
    refused("numbers", f"{FIRST}.generation_s", NOT_NUMBERS | {"negative": -1.0}),
    refused("numbers", f"{FIRST}.last_policy_version", {"-1": -1, "not there yet": 99, "a half": 0.5, **TOO_LARGE}),
    refused("numbers", f"{ITEM}.images", NOT_FINITE),
    refused("numbers", f"{ITEM}.generation_params", {name: {"a": value} for name, value in NOT_FINITE.items()}),
    refused("numbers", f"{MESSAGE}.score", NOT_FINITE),
]

REPAIRED = {name: text for name, text in TEXTS.items() if name not in UNSAYABLE}
"""What every wire can say; of what Postgres cannot hold something else is stored."""
SHORT = {name: text for name, text in REPAIRED.items() if 0 < len(text) <= 100 and "\0" not in text}
NAMES = {name: text for name, text in SHORT.items() if name not in NAMELESS}
HIDING = {name: text for name, text in SHORT.items() if name in NAMELESS}
TOOL_CALLS: dict[str, Data] = {"odd": [{"a\0": 2**70, "b": [[]] * 50, "\ud800": "\udfff"}], "40 deep": deep(40)}
TEXT = [
    taken("text", f"{MESSAGE}.content", REPAIRED, EVERYWHERE),
    taken("text", f"{MESSAGE}.name", REPAIRED, EVERYWHERE),
    Case(
        "text", "10 MB in one line", {"": ((f"{MESSAGE}.content", Later(lambda: "x" * 10_000_000)),)}, EVERYWHERE, True
    ),
    taken("text", f"{MESSAGE}.content", {name: TEXTS[name] for name in UNSAYABLE}, ATROPOS),
    taken("text", f"{MESSAGE}.content", {"parts": [{"type": "text", "text": "\0"}, 7], "null": None}, ATROPOS),
    taken(
        "text", f"{MESSAGE}.role", {"unknown": "wizard", "empty": "", "NUL": "\0", "null": None, "a list": [1]}, ATROPOS
    ),
    taken("text", f"{MESSAGE}.tool_calls", TOOL_CALLS, ATROPOS),
    refused("text", f"{MESSAGE}.role", {"5,000 deep": deep(5000), "NaN": float("nan")}),
    refused("text", f"{MESSAGE}.tool_calls", {"5,000 deep": deep(5000), "NaN": float("nan")}),
    taken("text", "problem_key", SHORT, NATIVE),
    taken("text", f"{FIRST}.replica", NAMES, NATIVE),
    taken("text", f"{FIRST}.metrics", {name: {text: 1.0} for name, text in NAMES.items()}, NATIVE),
    taken("text", f"{FIRST}.metrics", {"all of them": dict.fromkeys(NAMES.values(), -0.5)}, NATIVE),
    refused("text", f"{FIRST}.replica", HIDING),
    refused("text", f"{FIRST}.metrics", {name: {text: 1.0} for name, text in HIDING.items()}),
    refused("text", "environment", HIDING),
    refused("text", "key", HIDING),
    refused("text", "problem_key", {"empty": "", "NUL": "a\0", "surrogate": "\ud800", "long": "p" * 201}),
    refused("text", "environment", {"empty": "", "NUL": "a\0", "surrogate": "\ud800", "long": "e" * 101}),
    refused("text", "key", {"empty": "", "NUL": "a\0", "surrogate": "\udfff", "long": "k" * 65, "a number": 7}),
    refused("text", f"{FIRST}.replica", {"NUL": "a\0", "surrogate": "\ud800", "long": "r" * 101}),
    refused("text", f"{FIRST}.metrics", {"NUL": {"\0": 1.0}, "empty": {"": 1.0}, "long": {"k" * 101: 1.0}}),
    refused("text", f"{FIRST}.stop_reason", {"unknown": "bored", "an error with a reward": "error", "NUL": "\0"}),
    taken("text", f"{FIRST}.error", {"odd": {"kind": "policy", "type": "\0", "message": "\0\x1b"}}, NATIVE),
    refused(
        "text",
        "problem_key",
        {"overlong": Literal(b'"\xc0\x80"', b"\xa2\xc0\x80"), "no UTF-8": Literal(b'"\xff"', b"\xa1\xff")},
    ),
    refused("text", f"{ITEM}.images", {"overlong": Literal(b'"\xc0\x80"'), "no UTF-8": Literal(b'"\xff"')}),
    refused("text", f"{MESSAGE}.content", {"with a line break": Literal(b'"\n"'), "with a raw NUL": Literal(b'"\0"')}),
]

CASES = [*SHAPES, *NUMBERS, *TEXT]

ODD_VALUES: dict[str, Data] = {
    **WRONG_KINDS,
    **{name: NOT_NUMBERS[name] for name in ("NaN", "1e999", "1e308", "text NaN", "text Infinity")},
    **{f"a number of {name}": number for name, number in TOO_LARGE.items()},
    "nothing at all": MISSING,
    "0": 0,
    "-1": -1,
    "-2**31": -(2**31),
    "-0.0": -0.0,
    "a small number": 1e-300,
    "a share": 0.5,
    "empty text": "",
    "NUL": "a\0b",
    "surrogate": "\ud800",
    "5,000 characters": "x" * 5000,
    "a path": "../../../etc/passwd",
    "script": "<script>",
    "a list": [],
    "a list of text": ["a", "\0"],
}
"""In place of any value of any small body."""
