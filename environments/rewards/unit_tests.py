"""`unit_tests`: the share of hidden tests that the code of the last reply passes, in a sandbox."""

from typing import Annotated, Any

from msgspec import Meta

from environments.rewards import replies
from environments.rewards.judged_code import judge
from environments.rewards.judged_code.assertions import Assertion, functions_in, split
from environments.rewards.judged_code.judge import InputAndOutput, Test
from environments.types import FinishedRollout, Problem

_LONGEST = 200_000
"""Characters of code."""
_MIB = 2**20
_MOST_TESTS = 1_000
"""Whose reports are surely among the output that is kept."""


async def unit_tests(
    problem: Problem,
    rollout: FinishedRollout,
    *,
    field: Annotated[
        str, Meta(description="Where problem.data has the tests: a list of Python texts, or of stdin and stdout.")
    ] = "tests",
    all_or_nothing: Annotated[bool, Meta(description="1 where every test is passed, else 0.")] = False,
    test_s: Annotated[
        float,
        Meta(gt=0, le=60, description="Of the processor, for each call and program; of the clock five times as many."),
    ] = 2.0,
    wall_s: Annotated[float, Meta(gt=0, le=120, description="The same for all tests of a reply.")] = 10.0,
    memory_mib: Annotated[int, Meta(ge=64, le=2048, description="For all processes of a reply.")] = 512,
) -> float:
    """Share of tests passed by the code in the last reply's last fenced block, or in all of it where there is none.

    A test is either Python with asserts (`assert add(1, 2) == 3`), which call functions of the code unless Python or
    the test itself names them, and these take and give plain values; or an object with `stdin` and the `stdout` that
    the code has to print as a program. The code runs in a sandbox, and what is right never gets there. Raises
    SandboxUnavailable where no sandbox is.
    """
    tests = _read(replies.wanted(problem, field), field)
    said = replies.answer(problem, rollout)
    code = replies.in_fence(said)
    code = said if code is None else code
    rollout.metrics["tests_passed"] = 0.0
    rollout.metrics["tests_ended"] = 0.0
    if not code.strip() or len(code) > _LONGEST:
        return 0.0
    results = await judge.passed(
        code, tests, test_s=test_s, wall_s=wall_s, memory_bytes=memory_mib * _MIB, packages=True
    )
    passed = sum(map(bool, results))
    rollout.metrics["tests_passed"] = float(passed)
    rollout.metrics["tests_ended"] = float(sum(result is not None for result in results))
    return float(passed == len(tests)) if all_or_nothing else passed / len(tests)


def _read(tests: Any, field: str) -> list[Test]:
    """Raises ValueError, which names what cannot be read."""
    if not isinstance(tests, list) or not 0 < len(tests) <= _MOST_TESTS:
        raise ValueError(f"field: {field!r} of problem.data is no list of 1 to {_MOST_TESTS} tests")
    return [_one(test, field) for test in tests]


def _one(test: Any, field: str) -> Test:
    if isinstance(test, dict) and test.keys() == {"stdin", "stdout"} and all(isinstance(t, str) for t in test.values()):
        return InputAndOutput(test["stdin"], test["stdout"])
    text = test if isinstance(test, str) else ""
    try:
        sources = split(text)
        found = [Assertion(source, functions_in(sources, text)) for source in sources]
    except ValueError as error:
        raise ValueError(f"field: in {field!r} of problem.data, {error}") from None
    if not found:
        raise ValueError(f"field: a test in {field!r} of problem.data has neither asserts nor stdin and stdout")
    return found
