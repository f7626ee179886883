"""unit_tests: the policy's code is run, and judged by somebody else than itself."""

from typing import Any

import pytest

from environments.rewards.unit_test_judge import literal
from tests.environments.rewards.replying import problem, rollout, score
from tests.environments.sandbox.programs import needs_sandbox

pytestmark = pytest.mark.slow  # each starts a sandbox

ADDS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "def check(f):\n    assert f(2, b=2) == 4\ncheck(add)"]


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nIt adds."


def scored(code: str, tests: list[Any], **parameters: Any) -> float:
    return score("unit_tests", problem(tests=tests), fenced(code), **parameters)


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "share"),
    [
        ("def add(a, b):\n    return a + b", 1),
        ("def add(a, b):\n    return 3", 1 / 3),
        ("def add(a, b):\n    return 'no'", 0),
        ("def subtract(a, b):\n    return a - b", 0),
        ("def add(:", 0),
        ("", 0),
    ],
)
def test_the_share_of_passed_tests_counts(code: str, share: float) -> None:
    assert scored(code, ADDS) == pytest.approx(share)


@needs_sandbox
def test_code_without_a_fence_and_all_or_nothing() -> None:
    half = "add = max"
    assert score("unit_tests", problem(tests=ADDS), "def add(a, b): return a + b", all_or_nothing=True) == 1
    assert score("unit_tests", problem(tests=["assert add(1, 2) == 2", *ADDS]), half) == 0.25
    assert score("unit_tests", problem(tests=["assert add(1, 2) == 2", *ADDS]), half, all_or_nothing=True) == 0


@needs_sandbox
@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.kill(-1, 9)",
        "class Any(int):\n    __eq__ = __hash__ = lambda *_: True\ndef add(*_, **__): return Any(77)",
        "class Any:\n    def __eq__(*_): return True\ndef add(*_, **__): return Any()",
        "def add(*_, **__): raise AssertionError",
        "def add(*_, **__): raise SystemExit(0)",
        "def add(*_, **__): raise KeyboardInterrupt",
        "def add(*_, **__): return '[' * 10**5",
        "def add(*_, **__):\n    x = []\n    x.append(x)\n    return x",
        "open('judge.py', 'w').write('print(1)')\ndef add(*_, **__): return 77",
        'import ast, json, os\njson.dumps = lambda *_: \'["value", "True"]\'\ndef add(*_, **__): return 77',
        "import os\n"
        "for fd in range(256):\n"
        '    try: os.write(fd, b\'["value", "3"]\\n\' * 9)\n'
        "    except OSError: pass\n"
        "def add(*_, **__): return 77",
    ],
)
def test_code_that_does_not_add_passes_no_test_of_adding(code: str) -> None:
    # Of zero and three, which any code may guess, there is no test here.
    assert scored(code, ["assert add(100, 23) == 123", "assert add(2, 2) == 4"]) == 0


@needs_sandbox
def test_the_code_reads_no_memory_but_its_own_and_so_no_test() -> None:
    spying = """
import os, re

def pieces(process):
    for line in open(f"/proc/{process}/maps"):
        start, end = (int(each, 16) for each in line.split()[0].split("-"))
        if " rw" in line and end - start < 2**26:
            with open(f"/proc/{process}/mem", "rb", 0) as memory:
                memory.seek(start)
                yield memory.read(end - start)

def reads(process, word):
    try:
        return any(word in piece for piece in pieces(process))
    except OSError:
        return False

def seen(backwards):
    word = backwards[::-1].encode()
    return [name for name in sorted(os.listdir("/proc")) if name.isdigit() and reads(name, word)] == [str(os.getpid())]
"""
    # In its own memory it finds what it looks for: it can look.
    assert scored(spying, ["secret = 'the-k3y-of-the-test'\nassert seen(secret[::-1])"], test_s=8) == 1


@needs_sandbox
def test_a_call_that_hangs_costs_its_own_test_only() -> None:
    code = "def add(a, b):\n    while a == 1: pass\n    return a + b"
    assert scored(code, ADDS, test_s=0.5) == pytest.approx(2 / 3)


@needs_sandbox
def test_what_was_passed_before_all_time_was_used_counts() -> None:
    played = rollout(fenced("def add(a, b):\n    while a == -1: pass\n    return a + b"))
    assert score("unit_tests", problem(tests=ADDS), played, test_s=30, wall_s=2) == pytest.approx(1 / 3)
    assert (played.metrics["tests_passed"], played.metrics["tests_ended"]) == (1, 1)


@needs_sandbox
def test_programs_are_judged_by_what_they_print() -> None:
    tests = [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "4 5\n", "stdout": "9"}, {"stdin": "x", "stdout": "?"}]
    assert scored("print(sum(map(int, input().split())), '')", tests) == pytest.approx(2 / 3)


@needs_sandbox
def test_exceptions_and_values_reach_the_test_as_they_were() -> None:
    code = "def f(x):\n    if x is None: raise ValueError('none')\n    return [x, (x,), {x}, {x: set()}, -1e999, b'y']"
    raised = "try:\n    f(None)\nexcept ValueError:\n    pass\nelse:\n    assert False"
    assert scored(code, [raised, "assert f(2) == [2, (2,), {2}, {2: set()}, float('-inf'), b'y']"]) == 1


def test_what_is_no_plain_value_has_no_literal() -> None:
    for value in (object(), lambda: 0, [object()]):
        with pytest.raises(TypeError, match="no plain value"):
            literal(value)


@pytest.mark.parametrize("tests", [[], "assert True", [1], [""], [{"stdin": ""}], [{"stdin": 1, "stdout": ""}]])
def test_what_is_no_list_of_tests_is_named(tests: object) -> None:
    with pytest.raises(ValueError, match=r"field: .*problem.data"):
        score("unit_tests", problem(tests=tests), "x")
