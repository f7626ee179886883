"""`unit_tests`: the share of hidden tests that the code of the last reply passes, in a sandbox."""

import json
import secrets
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from environments.rewards import replies, unit_test_judge
from environments.sandbox.tools import SandboxLimits, run
from environments.types import FinishedRollout, Problem

_LONGEST = 200_000
"""Characters of code."""
_MIB = 2**20
_MOST_TESTS = 1_000
"""Whose reports are surely among the output that is kept."""
_PROGRAM = "judge.py"


async def unit_tests(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    field: Annotated[
        str, Meta(description="Where problem.data has the tests: a list of Python texts, or of stdin and stdout.")
    ] = "tests",
    all_or_nothing: Annotated[bool, Meta(description="1 where every test is passed, else 0.")] = False,
    test_s: Annotated[float, Meta(gt=0, le=60, description="For each call, and each program with stdin.")] = 2.0,
    wall_s: Annotated[float, Meta(gt=0, le=120, description="For all tests of a reply.")] = 10.0,
    memory_mib: Annotated[int, Meta(ge=64, le=2048, description="For all processes of a reply.")] = 512,
) -> float:
    """Share of tests passed by the code in the last reply's last fenced block, or in all of it where there is none.

    A test is either Python with asserts (`assert add(1, 2) == 3`), of whose names those that it does not define are
    functions of the code, which take and give plain values; or an object with `stdin` and the `stdout` that the code
    has to print as a program. The code runs in another process than the one that judges and never sees what is right.
    Raises SandboxUnavailable where no sandbox is.
    """
    tests = _checked(replies.wanted(problem, field), field)
    said = replies.answer(problem, rollout)
    code = replies.in_fence(said)
    code = said if code is None else code
    rollout.metrics["tests_passed"] = 0.0
    rollout.metrics["tests_ended"] = 0.0
    if not code.strip() or len(code) > _LONGEST:
        return 0.0
    word = secrets.token_hex(16)
    done = await run(
        ["python3", "-I", _PROGRAM],
        files={_PROGRAM: Path(unit_test_judge.__file__).read_bytes(), unit_test_judge.CODE: code},
        stdin=json.dumps({"word": word, "tests": tests, "test_s": test_s}),
        limits=SandboxLimits(wall_s=wall_s, cpu_s=wall_s, memory_bytes=memory_mib * _MIB),
    )
    reports = {tuple(line.split()[1:]) for line in done.output.splitlines() if line.startswith(f"{word} ")}
    passed = sum((str(number), "1") in reports for number in range(len(tests)))
    rollout.metrics["tests_passed"] = float(passed)
    rollout.metrics["tests_ended"] = float(len(reports))
    return float(passed == len(tests)) if all_or_nothing else passed / len(tests)


def _checked(tests: Any, field: str) -> list[Any]:
    def is_test(test: Any) -> bool:
        if isinstance(test, dict):
            return test.keys() == {"stdin", "stdout"} and all(isinstance(text, str) for text in test.values())
        return isinstance(test, str) and bool(test.strip())

    if not isinstance(tests, list) or not 0 < len(tests) <= _MOST_TESTS or not all(map(is_test, tests)):
        raise ValueError(
            f"field: {field!r} of problem.data is no list of 1 to {_MOST_TESTS} Python texts or objects with stdin and "
            "stdout"
        )
    return tests
