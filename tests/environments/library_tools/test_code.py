"""code: what passes the hidden tests is worth all, and how they are run decides nothing."""

import asyncio
import subprocess
import sys
import time
from typing import Any

import pytest

from environments import registry
from environments.env import Environment
from environments.errors import InvalidArguments
from environments.library.code.families import FAMILIES
from environments.sandbox import tools
from environments.sandbox.call import SandboxCall, SandboxResult
from environments.sandbox.tools import SandboxUnavailable
from environments.types import Message, Problem, Split
from tests.environments.library_tools.playing import (
    check_splits,
    hostile,
    reward_of,
    reward_of_solution,
    rollout_of,
    scored,
)
from tests.environments.sandbox.programs import needs_sandbox

pytestmark = pytest.mark.slow  # most start a sandbox


def code(**args: object) -> Environment[Any]:
    return registry.load("code", args)


def fenced(source: str) -> str:
    return f"Here it is.\n\n```python\n{source}\n```\nThat was it."


DOUBLED = Problem(
    key="doubled",
    messages=[Message("user", "double it")],
    data={
        "functions": ["solve"],
        "tests": [f"assert solve({n}) == {2 * n}" for n in range(10)],
        "solution": "",
    },
)


def test_problems_are_the_same_every_time_and_splits_share_none() -> None:
    check_splits("code", {"min_level": 2}, 150)


def test_chains_have_as_many_steps_and_words_as_many_examples_as_the_arguments_say() -> None:
    environment = code(min_level=4, min_steps=1, max_steps=2, examples=1)
    problems = [environment.problem(Split.TRAIN, index) for index in range(40)]
    assert {problem.key.count(".") for problem in problems} == {1, 2}
    assert {problem.messages[-1].text.count("solve([") for problem in problems} == {1}
    plain = code(min_level=4, min_steps=1, max_steps=2, number=3, examples=0)
    problems = [plain.problem(Split.TRAIN, index) for index in range(40)]
    # One step wants at least 5.
    assert {step.split(".")[1] for problem in problems for step in problem.key.split("-")[1:]} == {"3", "5"}
    assert not any("Examples" in problem.messages[-1].text for problem in problems)
    with pytest.raises(InvalidArguments, match=r"min_steps 3 is above max_steps 2"):
        code(max_steps=2)


def test_problems_are_the_same_whatever_the_hash_seed_of_the_process() -> None:
    program = (
        "from environments import registry; e = registry.load('code'); "
        "print([e.problem('train', n).messages[1].text for n in range(60)])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, timeout=60, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_what_is_shown_is_not_what_is_tested_and_no_answer_is_the_same_everywhere() -> None:
    environment = code()
    for index in range(80):
        problem = environment.problem(Split.TRAIN, index)
        shown = {line for line in problem.messages[1].text.splitlines() if line.startswith("solve(")}
        hidden = {test.removeprefix("assert ") for test in problem.data["tests"]}
        assert len(shown) == 3
        assert len(hidden) >= 8
        assert shown.isdisjoint(hidden)
        assert len({test.rpartition(" == ")[2] for test in hidden}) > 1


def test_there_are_families_for_every_level() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES) >= 12
    for level in (1, 2, 3, 4):
        environment = code(min_level=level, max_level=level)
        names = {environment.problem(Split.TRAIN, index).key.partition("-")[0] for index in range(60)}
        known = {family.name for family in FAMILIES if family.level == level}
        assert names == (known or {"pipeline"})


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_its_own_solutions_earn_the_full_reward(level: int) -> None:
    environment = code(min_level=level, max_level=level)
    for index in range(8):
        problem = environment.problem(Split.EVAL, index)
        assert reward_of_solution(environment, problem) == 1.0, problem.key


@needs_sandbox
@pytest.mark.parametrize(
    ("source", "reward", "passed"),
    [
        ("def solve(n):\n    return 2 * n", 1.0, 1.0),
        ("import math\nclass A:\n    two = 2\ndef solve(n):\n    print('hello')\n    return A.two * n", 1.0, 1.0),
        ("def solve(n):\n    return 2 * n if n < 5 else 0", 0.25, 0.5),
        ("def solve(n):\n    return 2 * n if n < 5 else 1 / 0", 0.25, 0.5),
        ("def solve(n):\n    while n > 7:\n        pass\n    return 2 * n", 0.4, 0.8),
        ("calls = []\ndef solve(n):\n    calls.append(n)\n    return 2 * n if len(calls) == 1 else 0", 1.0, 1.0),
        ("def solve(n):\n    return 4", 0.0, 0.1),
        ("def solve(n):\n    return str(2 * n)", 0.0, 0.0),
        ("def solve(n:\n    return 2 * n", 0.0, 0.0),
        ("def other(n):\n    return 2 * n", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_rewards(source: str, reward: float, passed: float) -> None:
    [rollout] = scored(code(test_s=0.5), DOUBLED, fenced(source))
    assert rollout.reward == pytest.approx(reward)
    assert rollout.metrics["tests_passed"] == pytest.approx(passed)


@needs_sandbox
def test_the_last_block_counts_and_none_in_the_thoughts() -> None:
    right, wrong = fenced("def solve(n):\n    return 2 * n"), fenced("def solve(n):\n    return 3 * n")
    replies = [
        wrong + right,
        right + wrong,
        f"<think>{right}</think>",
        f"<think>{wrong}</think>{right}",
        "def solve: 1",
    ]
    rollouts = scored(code(), DOUBLED, *replies)
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert [rollout.metrics["has_code"] for rollout in rollouts] == [1.0, 1.0, 0.0, 1.0, 0.0]


@needs_sandbox
def test_code_in_a_list_and_behind_words_is_code() -> None:
    listed = "1. The function:\n\n   ```python\n   def solve(n):\n       return 2 * n\n   ```\n\n2. It doubles."
    behind = "The function: ```python\ndef solve(n):\n    return 2 * n\n```"
    assert [rollout.reward for rollout in scored(code(), DOUBLED, listed, behind)] == [1.0, 1.0]


@needs_sandbox
@hostile
def test_nonsense_is_worth_nothing_and_costs_nothing(reply: str) -> None:
    began = time.monotonic()
    assert reward_of(code(), DOUBLED, reply) == 0.0
    assert time.monotonic() - began < 5


class _Nowhere:
    async def run(self, call: SandboxCall) -> SandboxResult:
        raise SandboxUnavailable("bubblewrap is missing: install it")


def test_without_a_sandbox_nothing_is_scored_and_the_error_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_engine", _Nowhere())
    rollout = rollout_of(DOUBLED, Message("assistant", fenced("def solve(n):\n    return 2 * n")))
    [score] = asyncio.run(code().score_group(DOUBLED, [rollout]))
    assert isinstance(score, SandboxUnavailable)
    assert "install it" in str(score)


@pytest.mark.parametrize("args", [{"min_level": 3, "max_level": 2}, {"max_level": 9}, {"data": "/nowhere.jsonl"}])
def test_bad_arguments_are_refused_by_name(args: dict[str, object]) -> None:
    with pytest.raises(InvalidArguments, match="|".join(args)):
        code(**args)


class _Saying:
    """An engine whose every program prints this."""

    def __init__(self, *lines: str) -> None:
        self._said = "\n".join(lines).encode()

    async def run(self, call: SandboxCall) -> SandboxResult:
        return SandboxResult(ended="exit", exit_code=0, stdout=self._said)


RIGHT_LINES = [f'[{n}, "value", {2 * n}]' for n in range(10)]


@pytest.mark.parametrize(
    ("lines", "passed"),
    [
        (RIGHT_LINES, 1.0),
        (RIGHT_LINES[5:] + RIGHT_LINES[:5], 1.0),
        # Whoever guesses has to guess right at once: of two answers to a call none counts.
        ([*RIGHT_LINES, '[0, "value", 7]'], 0.9),
        (['[0, "value", 7]', *RIGHT_LINES], 0.9),
        ([*RIGHT_LINES, *RIGHT_LINES[:5]], 0.5),
        ([*RIGHT_LINES, *RIGHT_LINES, *RIGHT_LINES], 0.0),
        ([*RIGHT_LINES[:5], "", "[]", "[5]", '["5", "value", 10]', "x", '[5, "value", {"no": 1}]'], 0.5),
        (["[" * 100_000, *RIGHT_LINES[:5], '[5, "passed", true]', '[true, "value", 2]'], 0.5),
        (["all tests passed"], 0.0),
        ([], 0.0),
    ],
)
def test_what_comes_out_of_the_sandbox_is_believed_no_further_than_it_is_right(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], passed: float
) -> None:
    monkeypatch.setattr(tools, "_engine", _Saying(*lines))
    [rollout] = scored(code(), DOUBLED, fenced("def solve(n): ..."))
    assert rollout.metrics["tests_passed"] == pytest.approx(passed)
    assert rollout.reward == pytest.approx(1.0 if passed == 1 else passed / 2)
