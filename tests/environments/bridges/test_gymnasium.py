"""The bridge to Gymnasium, with the real library in a process of its own."""

import time

import pytest

from environments.config import SamplingParams
from environments.errors import RegistryError
from environments.types import ErrorKind, Split, StopReason
from tests.environments.bridges.games import Games, told

pytestmark = pytest.mark.slow  # a process of another virtual environment

LAKE = {"id": "FrozenLake-v1", "options": {"is_slippery": False}, "observe": "render"}
NAMED = LAKE | {"action_names": ["left", "down", "right", "up"], "invalid_penalty": 0.25}
CORRIDOR = {"id": "Corridor-v0", "module": "corridors"}


def walk(word: str = "walk") -> str:
    return f'I think <action>x</action> no, <action>{{"word": "{word}", "steps": [1, 0]}}</action>'


def test_a_drawn_lake_is_crossed_by_named_actions_and_mistakes_cost(games: Games) -> None:
    played = games.play(
        "gymnasium", NAMED, ["down", "down", "jump", "right", "right", "<action>down</action>", "right"]
    )
    [rollout] = played.rollouts
    assert played.problem.key == "FrozenLake-v1:0"
    assert played.version.startswith("1+gymnasium-1.")
    said = told(rollout)
    assert said[0] == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert said[1].endswith("SFFF\n[F]HFH\nFFFH\nHFFG")
    assert said[3] == "'jump' is not an action. An action is left, down, right or up."
    assert rollout.reward == 0.75
    wanted = {"return": 1.0, "steps": 7.0, "invalid_actions": 1.0, "invalid_penalty": 0.25, "terminated": 1.0}
    assert {name: rollout.metrics[name] for name in wanted} == wanted
    assert rollout.branch_lengths == []


def test_seeds_are_the_problems_and_the_splits_share_none(games: Games) -> None:
    args = {"id": "CartPole-v1", "first_seed": 7, "train_count": 5}
    trained = games.problems("gymnasium", args, [0, 1, 0], Split.TRAIN)
    held_out = games.problems("gymnasium", args, [0, 1], Split.EVAL)
    assert [problem.key for problem in trained] == ["CartPole-v1:7", "CartPole-v1:8", "CartPole-v1:7"]
    assert trained[0] == trained[2]
    assert len({problem.messages[-1].text for problem in [*trained, *held_out]}) == 4
    assert not {problem.key for problem in trained} & {problem.key for problem in held_out}


def test_spaces_of_spaces_are_read_and_written_as_json(games: Games) -> None:
    wrong = '{"word": "walk", "steps": [1.0, 0]}'
    [rollout] = games.play("gymnasium", CORRIDOR, [walk(), wrong, walk()]).rollouts
    said = told(rollout)
    assert said[:2] == ['{"left": [0.6667], "seen": "2 to go"}', '{"left": [0.3333], "seen": "1 to go"}']
    assert "is not an action" in said[2]
    assert rollout.reward == pytest.approx(0.9)
    assert rollout.metrics["info/bonus"] == 0.5


def test_episodes_that_block_do_not_wait_for_each_other(games: Games) -> None:
    began = time.monotonic()
    played = games.play("gymnasium", CORRIDOR, [walk("sleep")], n=12)
    assert [rollout.reward for rollout in played.rollouts] == pytest.approx([0.9] * 12)
    spent = sum(span.seconds for rollout in played.rollouts for span in rollout.spans if span.kind == "tools")
    assert spent >= 12 * 2 * 0.5
    assert time.monotonic() - began < spent / 2


def test_an_episode_cut_short_keeps_what_it_had_earned(games: Games) -> None:
    [short] = games.play("gymnasium", CORRIDOR | {"max_steps": 1}, [walk()]).rollouts
    assert (short.reward, short.metrics["truncated"], short.metrics["terminated"]) == (-0.1, 1.0, 0.0)
    [cut] = games.play("gymnasium", CORRIDOR, [walk()], index=2, sampling=SamplingParams(max_turns=2)).rollouts
    assert (cut.reward, cut.stop_reason, cut.metrics["truncated"]) == (-0.2, StopReason.TURNS, 0.0)


def test_an_error_of_the_environment_is_data_of_its_rollout(games: Games) -> None:
    bad, good = games.play("gymnasium", CORRIDOR, [walk("crash"), walk(), walk()], n=2).rollouts
    assert bad.error is not None
    assert (bad.error.kind, bad.error.type) == (ErrorKind.ENVIRONMENT, "RuntimeError")
    assert "the ceiling came down" in bad.error.message
    assert good.error is None


def test_a_start_that_the_seed_does_not_decide_is_refused(games: Games) -> None:
    [rollout] = games.play("gymnasium", CORRIDOR | {"id": "Restless-v0"}, [walk()]).rollouts
    assert rollout.error is not None
    assert "Restless-v0:0 began otherwise this time" in rollout.error.message


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (CORRIDOR | {"id": "Picture-v0"}, "the observation space Box.* has 12288 numbers"),
        (CORRIDOR | {"id": "Listing-v0"}, "the action space Sequence.* is a Sequence, which has no form as text"),
        ({"id": "Nowhere-v0"}, r"gymnasium.make\('Nowhere-v0'\) failed: NameNotFound"),
        ({"id": "Corridor-v0", "module": "nowhere"}, "No module named 'nowhere'"),
        (CORRIDOR | {"action_names": ["a"]}, "action_names are for a Discrete space"),
        (LAKE | {"action_names": ["a", "b"]}, "action_names has to have 4 different names, it has 2"),
        ({}, "missing required field `id`"),
    ],
)
def test_what_cannot_be_mapped_is_refused_by_name(games: Games, args: dict[str, object], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        games.load("gymnasium", args)
