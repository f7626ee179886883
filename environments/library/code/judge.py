"""Tells how many tests a piece of code passes, by running it in a sandbox and comparing what it answers here.

    tests ── what to call, what to feed ──▶ sandbox: code_runner, a process for each ── values, outputs ──▶ compared

The right answers never leave this process, so code that reads, patches or ends whatever it finds cannot answer by it.
"""

import json
from pathlib import Path
from typing import Any

from environments.library.code.assertions import Assertion
from environments.library.code.runner import decoded, encoded
from environments.sandbox.tools import SandboxLimits, run
from environments.types import JsonObject

_RUNNER = Path(__file__).with_name("runner.py").read_text()
_MEMORY_BYTES = 256 * 2**20
_PROCESSES = 32
_DISK_BYTES = 16 * 2**20
_ANSWER_BYTES = 16_384
"""Of one answer, and twice as much as the longest right one. What is longer is wrong."""
_LINE_BYTES = 200


async def passed(code: str, data: JsonObject, *, test_s: float, wall_s: float, packages: bool = False) -> list[bool]:
    """Which of the tests in `data` code passes: of `tests`, assertions, or of `pairs` of an input and its output.

    Each test may take `test_s` and all together `wall_s` seconds; `packages`: code may import more than the standard
    library. Raises SandboxUnavailable.
    """
    tests = [Assertion(source, set(data["functions"])) for source in data.get("tests", ())]
    pairs: list[list[str]] = data.get("pairs", [])
    calls = [call for test in tests for call in test.calls]
    longest = max([len(output.encode()) for _, output in pairs] + [len(str(data.get("tests", "")))])
    asked: JsonObject = {"code": code, "most_s": test_s, "most_bytes": 2 * longest + _ANSWER_BYTES}
    asked |= {"inputs": [given for given, _ in pairs]} if pairs else {"calls": [_told(*call) for call in calls]}
    most_bytes = max(len(calls), len(pairs)) * (2 * asked["most_bytes"] + _LINE_BYTES)
    done = await run(
        ["python3", "-I", *([] if packages else ["-S"]), "code_runner.py"],
        files={"code_runner.py": _RUNNER},
        stdin=json.dumps(asked),
        limits=SandboxLimits(
            wall_s=wall_s,
            cpu_s=wall_s,
            memory_bytes=_MEMORY_BYTES,
            processes=_PROCESSES,
            disk_bytes=_DISK_BYTES,
            kept_bytes=most_bytes,
            output_bytes=2 * most_bytes,
        ),
    )
    answers = _answers(done.output)
    if pairs:
        return [_is_same(output, answers.get(number, ("failed", ""))) for number, (_, output) in enumerate(pairs)]
    results, number = [], 0
    for test in tests:
        own = [answers.get(each, ("failed", None)) for each in range(number, number + len(test.calls))]
        number += len(own)
        results.append(all(kind == "value" for kind, _ in own) and test.holds([value for _, value in own]))
    return results


def _told(function: str, arguments: list[Any], named: JsonObject) -> list[Any]:
    return [function, [encoded(each) for each in arguments], {name: encoded(each) for name, each in named.items()}]


def _answers(output: str) -> dict[int, tuple[str, Any]]:
    """By number. One that was answered more than once has no answer: somebody else wrote there."""
    found: dict[int, tuple[str, Any]] = {}
    for line in output.splitlines():
        try:
            number, kind, told = json.loads(line)
            answer = (kind, decoded(told) if kind == "value" else told)
        except (ValueError, TypeError, RecursionError):
            continue
        if type(number) is int:
            found[number] = ("failed", None) if number in found else answer
    return found


def _is_same(expected: str, answer: tuple[str, Any]) -> bool:
    """Whether an output is the right one, but for white space at the ends of lines and at its end."""
    kind, output = answer
    return kind == "output" and isinstance(output, str) and _lines(output) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
