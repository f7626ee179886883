"""unit_tests: the policy's code is run, and judged by somebody else than itself."""

from typing import Any

import pytest

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
    example = '"""It adds: ```python\n    add(1, 2)\n    ```\n    """'
    assert score("unit_tests", problem(tests=ADDS), f"def add(a, b):\n    {example}\n    return a + b") == 1
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
def test_a_call_that_hangs_costs_its_own_test_only() -> None:
    code = "def add(a, b):\n    while a == 1: pass\n    return a + b"
    assert scored(code, ADDS, test_s=0.5) == pytest.approx(2 / 3)


@needs_sandbox
def test_a_busy_machine_makes_no_right_answer_wrong() -> None:
    """A machine that gives processes no time is one that stops them: each call for longer than it may take, and all
    together for longer than they may."""
    code = """
import os, signal, time
def add(a, b):
    me = os.getpid()
    if not os.fork():
        time.sleep(1.2)
        os.kill(me, signal.SIGCONT)
        os._exit(0)
    os.kill(me, signal.SIGSTOP)
    return a + b
"""
    assert scored(code, ADDS, test_s=1, wall_s=2.5) == 1


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
def test_plain_values_of_every_kind_reach_the_test_as_they_were() -> None:
    code = "def f(x): return [x, (x,), {x}, {x: set()}, -1e999, b'y']"
    assert scored(code, ["assert f(2) == [2, (2,), {2}, {2: set()}, -math.inf, b'y']"]) == 1


@needs_sandbox
def test_functions_and_programs_may_be_tested_beside_each_other() -> None:
    code = "def add(a, b): return a + b\nif __name__ == '__main__': print(add(1, 2))"
    assert scored(code, [{"stdin": "", "stdout": "3"}, *ADDS, {"stdin": "", "stdout": "4"}]) == pytest.approx(4 / 5)


@pytest.mark.parametrize("test", ["try:\n    f()\nexcept ValueError: pass", "for n in f(): assert n", "assert f(open)"])
def test_a_test_that_cannot_be_read_as_asserts_is_named(test: str) -> None:
    with pytest.raises(ValueError, match=r"field: in 'tests' of problem.data, the"):
        score("unit_tests", problem(tests=[test]), "x")


@pytest.mark.parametrize("tests", [[], "assert True", [1], [""], [{"stdin": ""}], [{"stdin": 1, "stdout": ""}]])
def test_what_is_no_list_of_tests_is_named(tests: object) -> None:
    with pytest.raises(ValueError, match=r"field: .*problem.data"):
        score("unit_tests", problem(tests=tests), "x")
