"""What has to hold of problems, played or not."""

import asyncio
import hashlib
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from environments import registry
from environments.env import Environment
from environments.kit.report import Finding, finding
from environments.types import JsonObject, Problem, Split

_MOST_KEY = 200
"""Characters that are stored of a problem's key."""
_SCANNED, _SCAN_S = 2_000, 2.0
"""Problems of each split whose keys and texts are compared, as far as the seconds go."""
_FRESH_S = 120.0
_SHORTEST_SECRET = 4
"""Characters of an answer that stands in a text hardly by chance."""
_ANSWER = re.compile("answer|solution|expected|target|secret|hidden|truth|correct|reference|word")
"""What a field of the data is called that nobody may see."""


def first(environment: Environment[Any], split: Split, count: int) -> list[Problem]:
    """The first problems of a split, at most `count`."""
    return [environment.problem(split, index) for index in range(min(count, environment.count(split)))]


def stable(environment: Environment[Any], count: int) -> Iterator[Finding]:
    """Problems are the same twice, and in a fresh process."""
    once, again = ([each for split in Split for each in first(environment, split, count)] for _ in range(2))
    other = [one.key for one, two in zip(once, again, strict=True) if one != two]
    yield finding(other, "Problems are the same when asked for again.", "Problems differ when asked for again")
    fault = _fault_in_a_fresh_process(environment, count, _fingerprint(once))
    yield finding([fault] if fault else [], "Problems are the same in a fresh process.", "Problems of a fresh process")


def told_apart(environment: Environment[Any]) -> Iterator[Finding]:
    """A key is of one problem, and a problem of one split."""
    train, evaluated = (list(_scan(environment, split)) for split in Split)
    by_key: dict[str, set[bytes]] = defaultdict(set)
    for problem in [*train, *evaluated]:
        by_key[problem.key].add(_content(problem))
    wrong = [f"{key!r} is of {len(each)} problems" for key, each in by_key.items() if len(each) > 1]
    wrong += [f"{key[: _MOST_KEY + 1]!r} is none" for key in by_key if not _is_key(key)]
    count = len({content for each in by_key.values() for content in each})
    sizes = f"{len(by_key)} keys of {count} problems"
    keys = f"Keys are of one problem each ({sizes})."
    yield finding(wrong, keys, f"Keys have 1 to {_MOST_KEY} printable characters and are of one problem each")

    trained, prompts = {_content(problem) for problem in train}, {_prompt(problem) for problem in train}
    # Where the first message does not tell problems apart, as in games with hidden cards, what is hidden has to.
    is_told = len(prompts) == len(trained)
    both = [each.key for each in evaluated if (_prompt(each) in prompts if is_told else _content(each) in trained)]
    by = "what is asked" if is_told else "what is asked and hidden"
    disjoint = f"No problem is in both splits, by {by} ({len(train)} and {len(evaluated)} compared)."
    yield finding(both, disjoint, "Held-out problems are trained on")


def hidden(problems: Sequence[Problem]) -> Finding:
    """Nothing that scoring knows stands in the messages.

    Some answers are a part of their question by chance; where those of most problems are, they were not hidden.
    """
    told: dict[str, int] = defaultdict(int)
    for problem in problems:
        text = _prompt(problem).decode()
        for name, value in problem.data.items():
            told[name] += _ANSWER.search(name.lower()) is not None and any(form in text for form in _forms(value))
    wrong = [f"data[{name!r}] stands in the messages" for name, times in told.items() if times > len(problems) / 2]
    wrong += [each.key for each in problems if each.data and msgspec.json.encode(each.data) in _prompt(each)]
    return finding(wrong, "No answer stands in the messages.", "The messages show what scoring knows")


def encodable(problems: Sequence[Problem]) -> Finding:
    """Problems are JSON, and hold nothing that JSON makes something else of, but for lists of tuples."""
    wrong: list[str] = []
    for problem in problems:
        try:
            if through_json(problem) != msgspec.structs.replace(problem, data=_with_lists(problem.data)):
                wrong.append(f"{problem.key} comes back another one (a set? a key that is no text? NaN?)")
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            wrong.append(f"{problem.key}: {exc}")
    return finding(wrong, "Problems are JSON and come back the same.", "Problems have to be JSON")


def through_json(problem: Problem) -> Problem:
    """What arrives of a problem where another process scores it. Raises what msgspec does of what is no JSON.

    It goes there as MessagePack, whose integers have 64 bits.
    """
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(problem), type=Problem)
    return msgspec.json.decode(msgspec.json.encode(sent), type=Problem)


def tell_fingerprint(place: str, args: JsonObject, count: int) -> None:
    """In a fresh process: write the fingerprint of an environment's problems to stdout."""
    environment = registry.load(place, args)

    async def found() -> list[Problem]:
        await environment.open()
        return [problem for split in Split for problem in first(environment, split, count)]

    sys.stdout.write(_fingerprint(asyncio.run(found())))


def _fault_in_a_fresh_process(environment: Environment[Any], count: int, expected: str) -> str:
    """What is wrong with the problems there; empty: nothing."""
    made = type(environment)
    call = (f"{made.__module__}:{made.__qualname__}", msgspec.to_builtins(environment.args), count)
    code = f"from environments.kit.problems import tell_fingerprint\ntell_fingerprint(*{call!r})"
    # Another order of what is in sets, too.
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=_FRESH_S
        )
    except subprocess.TimeoutExpired:
        return f"take more than {_FRESH_S:g} s"
    if done.returncode:
        return f"cannot be made: {''.join(done.stderr.splitlines()[-1:])}"
    return "" if done.stdout.endswith(expected) else "are others: something beside the arguments decides"


def _fingerprint(problems: Sequence[Problem]) -> str:
    return hashlib.sha256(msgspec.json.encode(problems)).hexdigest()


def _scan(environment: Environment[Any], split: Split) -> Iterator[Problem]:
    """Problems from all over a split."""
    count = environment.count(split)
    until = time.monotonic() + _SCAN_S
    for number in range(min(count, _SCANNED)):
        if time.monotonic() > until:
            return
        yield environment.problem(split, number * count // min(count, _SCANNED))


def _prompt(problem: Problem) -> bytes:
    return msgspec.json.encode((problem.messages, problem.tools))


def _content(problem: Problem) -> bytes:
    return msgspec.json.encode((problem.messages, problem.tools, problem.data), order="sorted")


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_lists(each) for key, each in value.items()}
    return [_with_lists(each) for each in value] if isinstance(value, list | tuple) else value


def _is_key(key: str) -> bool:
    return 0 < len(key) <= _MOST_KEY and key.isprintable() and key.strip() == key


def _forms(value: Any) -> list[str]:
    """How a value of the data would stand in JSON text, if it is long enough to tell."""
    texts = [separator.join(map(str, value)) for separator in ("\n", ", ", " ")] if isinstance(value, list) else [value]
    found = [str(text) for text in texts]
    return [msgspec.json.encode(text).decode()[1:-1] for text in found if len(text) >= _SHORTEST_SECRET]
