"""Whatever is said, a reward gives a number from 0 to 1, soon, and nonsense is worth nothing."""

import asyncio
import time

import pytest

from environments.rewards.registry import RewardPart, Rewards, find, is_built_in, parameters_of, places
from tests.environments.rewards.replying import HOSTILE, NO_LOOP_S, problem, rollout, score
from tests.environments.sandbox.programs import needs_sandbox

DATA = {
    "answer": "B",
    "number": "42",
    "calls": [{"name": "f", "arguments": {}}],
    "tests": ["assert f(1) == 2"],
    "schema": {"type": "object"},
}
EARNING = [
    RewardPart(name="exact"),
    RewardPart(name="exact", label="exact in a tag", args={"tag": "answer"}),
    RewardPart(name="exact", label="the line", args={"take": "line"}),
    RewardPart(name="exact", label="the number", args={"take": "number", "field": "number"}),
    RewardPart(name="choice"),
    RewardPart(name="tagged"),
    RewardPart(name="tagged", label="two tags", args={"tag": ["think", "answer"], "other_text": "nowhere"}),
    RewardPart(name="matches", args={"pattern": "(B+)+$"}),
    RewardPart(name="json_schema"),
    RewardPart(name="math", args={"field": "number"}),
    RewardPart(name="tool_calls"),
    RewardPart(name="fuzzy", args={"floor": 0.5}),
]
PENALTIES = [
    RewardPart(name="length", args={"soft": 10, "hard": 20, "by": "characters"}),
    RewardPart(name="repetition", args={"by": "characters"}),
    RewardPart(name="repetition", label="words", args={"by": "words"}),
]


@pytest.mark.parametrize("reply", HOSTILE)
def test_nonsense_earns_nothing(reply: str) -> None:
    rewards, played = Rewards(EARNING), rollout(HOSTILE[reply])
    assert asyncio.run(rewards.score(problem(**DATA), played)) == 0


@pytest.mark.parametrize("reply", HOSTILE)
def test_penalties_are_shares(reply: str) -> None:
    played = rollout(HOSTILE[reply])
    asyncio.run(Rewards(PENALTIES).score(problem(), played))
    assert all(0 <= value <= 1 for value in played.metrics.values())
    assert (played.metrics["reward/length"] == 1) == (len(HOSTILE[reply]) > 20)


def test_nothing_takes_long() -> None:
    asked = problem(**DATA)
    played = {name: rollout(text) for name, text in HOSTILE.items()}
    took: dict[tuple[str, str], float] = {}
    for part in [*EARNING, *PENALTIES]:
        rewards = Rewards([part])
        for name, one in played.items():
            began = time.perf_counter()
            asyncio.run(rewards.score(asked, one))
            took[part.label or part.name, name] = time.perf_counter() - began
    assert {each: seconds for each, seconds in took.items() if seconds > NO_LOOP_S} == {}


@needs_sandbox
@pytest.mark.parametrize("reply", ["one character", "controls", "halves of characters", "newlines", "fences"])
def test_nonsense_passes_no_unit_test(reply: str) -> None:
    assert score("unit_tests", problem(**DATA), HOSTILE[reply][:150_000]) == 0


def test_a_rollout_in_which_nobody_spoke_is_worth_nothing() -> None:
    assert asyncio.run(Rewards(EARNING).score(problem(**DATA), rollout(None, thought="B, 42"))) == 0


@pytest.mark.parametrize("name", places())
def test_every_reward_describes_itself_and_its_parameters(name: str) -> None:
    reward = find(name)
    described = str(parameters_of(reward).__annotations__)
    assert is_built_in(name)
    assert reward.__doc__
    assert described.count("description=") == len(parameters_of(reward).__struct_fields__)
