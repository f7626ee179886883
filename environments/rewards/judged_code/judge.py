"""Tells how many tests a piece of code passes, by running it in a sandbox and comparing what it answers here.

    tests ── what to call, what to feed ──▶ sandbox: code_runner, a process for each ── values, outputs ──▶ compared

The right answers never leave this process, so code that reads, patches or ends whatever it finds cannot answer by it.
"""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from environments.errors import RewardError
from environments.rewards.judged_code.assertions import Assertion
from environments.rewards.judged_code.runner import BUSY, decoded, encoded
from environments.sandbox.tools import SandboxLimits, run
from environments.types import JsonObject

_RUNNER = Path(__file__).with_name("runner.py").read_text()
_MEMORY_BYTES = 256 * 2**20
_PROCESSES = 32
_DISK_BYTES = 16 * 2**20
_ANSWER_BYTES = 16_384
"""Of one answer, and twice as much as the longest right one. What is longer is wrong."""
_LINE_BYTES = 200
_ASSERTED_BYTES = 4_096
"""Of what an assertion compares with, beside its calls."""

Answer = tuple[str, Any]
"""Its kind, as the runner says it, and what it is."""


class InputAndOutput(NamedTuple):
    """What a program reads, and has to print."""

    input: str
    output: str


Test = InputAndOutput | Sequence[Assertion]


async def passed(
    code: str,
    tests: Sequence[Test],
    *,
    test_s: float,
    wall_s: float,
    memory_bytes: int = _MEMORY_BYTES,
    packages: bool = False,
    imported: str = "",
    holder: str = "",
) -> list[bool | None]:
    """Whether code passes each of the tests; None: it was ended before it had answered all of that.

    Each call and each program may take `test_s`, and all together `wall_s` seconds of the processor, and of the clock
    `BUSY` times as many; `packages`: code may import more than the standard library; `imported`: imports that it may do
    without; `holder`: a class whose methods are called where code has it. Raises SandboxUnavailable, RewardError.
    """
    calls = [
        call for test in tests if not isinstance(test, InputAndOutput) for assertion in test for call in assertion.calls
    ]
    pairs = [test for test in tests if isinstance(test, InputAndOutput)]
    longest = max([len(pair.output.encode()) for pair in pairs] + [len(str(calls)) + _ASSERTED_BYTES])
    asked: JsonObject = {"code": code, "most_s": test_s, "most_bytes": 2 * longest + _ANSWER_BYTES}
    asked |= {"imported": imported, "holder": holder}
    asked |= {"calls": [_told(*call) for call in calls], "inputs": [pair.input for pair in pairs]}
    most_bytes = (len(calls) + len(pairs)) * (2 * asked["most_bytes"] + _LINE_BYTES)
    done = await run(
        ["python3", "-I", *([] if packages else ["-S"]), "code_runner.py"],
        files={"code_runner.py": _RUNNER},
        stdin=json.dumps(asked),
        limits=SandboxLimits(
            wall_s=BUSY * wall_s,
            cpu_s=wall_s,
            memory_bytes=memory_bytes,
            processes=_PROCESSES,
            disk_bytes=_DISK_BYTES,
            kept_bytes=most_bytes,
            output_bytes=2 * most_bytes,
        ),
    )
    # Never for what code wrote instead: else whoever floods would have no reward in place of a bad one.
    if done.stdout_was_cut and len(done.stdout) < (needed := _needed_bytes(pairs)):
        raise RewardError(
            f"The right outputs are {needed:,} bytes, and of what programs print {len(done.stdout):,} are kept: "
            "give the problem fewer tests, or smaller ones."
        )
    answers = _answers(done.output)
    answered_calls, answered_inputs = iter(range(len(calls))), iter(range(len(calls), len(calls) + len(pairs)))

    def holds(test: Test) -> bool | None:
        numbers = answered_inputs if isinstance(test, InputAndOutput) else answered_calls
        count = 1 if isinstance(test, InputAndOutput) else sum(len(assertion.calls) for assertion in test)
        own = [answers.get(number) for number in islice(numbers, count)]
        given = [answer for answer in own if answer is not None]
        if len(given) < len(own):
            return None
        return _is_same(test.output, given[0]) if isinstance(test, InputAndOutput) else _all_hold(test, given)

    return [holds(test) for test in tests]


def _needed_bytes(pairs: Sequence[InputAndOutput]) -> int:
    """Of the lines that answer with the right outputs."""
    return sum(len(json.dumps(pair.output)) + _LINE_BYTES for pair in pairs)


def _all_hold(assertions: Sequence[Assertion], answers: Sequence[Answer]) -> bool:
    if any(kind != "value" for kind, _ in answers):
        return False
    values = iter([value for _, value in answers])
    return all(each.holds(list(islice(values, len(each.calls)))) for each in assertions)


def _told(function: str, arguments: list[Any], named: JsonObject) -> list[Any]:
    return [function, [encoded(each) for each in arguments], {name: encoded(each) for name, each in named.items()}]


def _answers(output: str) -> dict[int, Answer]:
    """By number. One that was answered more than once has no answer: somebody else wrote there."""
    found: dict[int, Answer] = {}
    for line in output.splitlines():
        try:
            number, kind, told = json.loads(line)
            answer = (kind, decoded(told) if kind == "value" else told)
        except (ValueError, TypeError, RecursionError):
            continue
        if type(number) is int:
            found[number] = ("failed", None) if number in found else answer
    return found


def _is_same(expected: str, answer: Answer) -> bool:
    """Whether an output is the right one, but for white space at the ends of lines and at its end."""
    kind, output = answer
    return kind == "output" and isinstance(output, str) and _lines(output) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
