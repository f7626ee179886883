"""Classes of Atropos, unmodified, play in a process of their own virtual environment (make atropos-venv)."""

import asyncio
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from environments.errors import RegistryError
from environments.types import ErrorKind, PlayedRollout, RolloutError, Split
from tests.environments.bridges.atropos_room import HERE, PYTHON, AtroposRoom

pytestmark = [
    pytest.mark.slow,  # a process that imports atroposlib
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-atropos: run make atropos-venv"),
]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AtroposRoom]:
    with asyncio.Runner() as runner:
        room = AtroposRoom(runner, tmp_path_factory.mktemp("room"))
        yield room
        room.close()


WORTH = {"one": 1.0, "on": 2 / 3, "x": 0.0, "yyy": 0.0}
"""What a reply to "one" is worth."""


def rewards(rollouts: list[PlayedRollout]) -> list[float | None]:
    for rollout in rollouts:
        assert rollout.error is None, rollout.error
    return [rollout.reward for rollout in rollouts]


def error(rollout: PlayedRollout) -> RolloutError:
    assert rollout.error is not None
    return rollout.error


def trained(rollout: PlayedRollout) -> list[int]:
    return [token for token, mask in zip(rollout.token_ids, rollout.loss_mask, strict=True) if mask]


def test_a_managed_server_plays_and_what_trains_is_what_was_sampled(room: AtroposRoom) -> None:
    room.load("WordsEnv")
    rollouts = room.play_one(["one", "on", "x"], 3)
    assert rewards(rollouts) == [1.0, 2 / 3, 0.0]
    for rollout, (prompt, sampled) in zip(rollouts, room.policy.sampled, strict=True):
        assert rollout.token_ids == prompt + sampled
        assert trained(rollout) == sampled
    assert rollouts[0].metrics == {"sequences": 1.0, "tokens_left_out": 0.0, "train/groups": 1.0}


def said(rollout: PlayedRollout) -> list[str]:
    """Its replies. Two rollouts of two turns take them in whatever order they come to ask."""
    text = "".join("|" if token > 255 else chr(token) for token in trained(rollout))
    return text.split("|")[:-1]


def test_each_rollout_of_two_turns_is_one_sequence_of_its_own_session(room: AtroposRoom) -> None:
    room.load("TwiceEnv")
    replies = ["x", "on", "one", "on"]
    rollouts = room.play_one(replies, 2)
    assert sorted(chain.from_iterable(map(said, rollouts))) == sorted(replies)
    assert rewards(rollouts) == [WORTH[said(rollout)[1]] for rollout in rollouts]
    for rollout in rollouts:
        assert rollout.branch_lengths == []
        [(prompt, last)] = [each for each in room.policy.sampled if each[0] + each[1] == rollout.token_ids]
        earlier = {
            tuple(reply) for before, reply in room.policy.sampled if prompt[: len(before + reply)] == before + reply
        }
        assert [tuple(trained(rollout))] == [(*first, *last) for first in earlier]


def test_a_history_that_is_forgotten_makes_a_branch_of_the_same_rollout(room: AtroposRoom) -> None:
    room.load("ForgetfulEnv")
    replies = ["x", "yyy", "one", "on"]
    rollouts = room.play_one(replies, 2)
    assert sorted(chain.from_iterable(map(said, rollouts))) == sorted(replies)
    assert rewards(rollouts) == [WORTH[said(rollout)[1]] for rollout in rollouts]
    for rollout in rollouts:
        assert len(rollout.branch_lengths) == 2
        assert sum(rollout.loss_mask) == len(trained(rollout))
    assert all(rollout.metrics["tokens_left_out"] > 0 for rollout in rollouts)


@pytest.mark.parametrize("server_type", ["vllm", "openai"])
def test_tokens_that_were_made_of_text_are_known_by_it_and_the_record_trains(
    room: AtroposRoom, server_type: str
) -> None:
    room.load("RetokenizedEnv", server_type=server_type)
    rollouts = room.play_one(["one", "x", "on"], 3)
    assert rewards(rollouts) == [1.0, 0.0, 2 / 3]
    assert [trained(rollout) for rollout in rollouts] == [reply for _, reply in room.policy.sampled]


def test_replies_that_are_alike_are_shared_out_one_to_each_rollout(room: AtroposRoom) -> None:
    room.load("RetokenizedEnv")
    assert rewards(room.play_one(["one"], 12)) == [1.0] * 12


def test_two_groups_are_played_at_once_each_with_its_own_size(room: AtroposRoom) -> None:
    room.load("OfferedEnv", train_count=5)
    problems = [room.problem(0), room.problem(1), room.problem(3)]
    assert problems[0].key == problems[2].key != problems[1].key
    groups = room.play(["one", "three"], 2, problems[0], problems[2])
    assert [len(group) for group in groups] == [2, 2]
    # Which group asks first is chance, and so whose reply is which.
    assert sorted(reward for group in groups for reward in rewards(group)) == [1 / 3, 1 / 3, 1.0, 1.0]


def test_settings_come_from_the_class_then_yaml_then_the_command_line(room: AtroposRoom) -> None:
    room.load("WordsEnv", {"worth": 2.0})
    assert rewards(room.play_one(["one"], 1)) == [2.0]
    before = room.version
    room.load("WordsEnv", {"worth": 2.0}, flags=["--env.worth", "3.0"])
    assert rewards(room.play_one(["one"], 1)) == [3.0]
    assert before.startswith("0.4.0-")
    assert room.version != before


def test_a_class_is_found_in_a_file_and_by_its_name(room: AtroposRoom) -> None:
    room.load(f"{HERE / 'atropos_envs.py'}:TwiceEnv")
    assert rewards(room.play_one(["one"], 1)) == [1.0]
    with pytest.raises(RegistryError, match="say which class"):
        room.load("atropos_envs:")


def test_items_are_known_by_what_is_in_them_and_some_are_held_out_if_asked_for(room: AtroposRoom) -> None:
    room.load("WordsEnv", train_count=7)
    keys = [room.problem(index).key for index in range(4)]
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]
    assert (room.count(Split.TRAIN), room.problem(0).key) == (7, keys[0])
    with pytest.raises(Exception, match="set eval_count"):
        room.count(Split.EVAL)
    room.load("WordsEnv", eval_count=2)
    assert room.problem(0).key == keys[0]
    with pytest.raises(Exception, match="10001 items in a row were not of split eval"):
        room.problem(0, Split.EVAL)


def test_items_that_a_thread_reads_are_found_however_many_are_asked_for_at_once(room: AtroposRoom) -> None:
    room.load("ReadingEnv")
    assert len({problem.key for problem in room.problems(64)}) == 3


def test_a_rollout_that_was_left_out_or_not_found_fails_alone_and_by_name(room: AtroposRoom) -> None:
    room.load("PartlyEnv")
    rollouts = room.play_one(["one", "on", "x"], 3)
    for rollout in rollouts[:2]:
        assert "None of the environment's scored sequences" in error(rollout).message
        assert error(rollout).kind is ErrorKind.REWARD
    assert rewards(rollouts[2:]) == [0.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("AdvantagesEnv", "The environment gives advantages, which have no place here."),
        ("DecliningEnv", "it declines those it cannot use"),
    ],
)
def test_what_cannot_be_mapped_is_refused_by_name(room: AtroposRoom, name: str, message: str) -> None:
    room.load(name)
    for rollout in room.play_one(["one", "on"], 2):
        assert message in error(rollout).message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "RaisingEnv.collect_trajectories: LookupError: no such word."),
        ({"worth": 0.0, "worker_timeout": 0.1}, "RaisingEnv.collect_trajectories: TimeoutError."),
    ],
)
def test_an_environment_that_breaks_or_hangs_fails_its_group_and_plays_on(
    room: AtroposRoom, config: dict[str, Any], message: str
) -> None:
    room.load("RaisingEnv", config)
    for _ in range(2):
        for rollout in room.play_one(["one"], 2):
            assert error(rollout).message == message
            assert error(rollout).kind is ErrorKind.ENVIRONMENT


def test_what_the_policy_says_beside_its_rollouts_is_refused_by_name(room: AtroposRoom) -> None:
    room.load("JudgedEnv")
    for rollout in room.play_one(["one", "on"], 2):
        assert "begins 1 more conversations where 0 of its group's 2 rollouts have none" in error(rollout).message


def test_a_client_in_a_thread_belongs_to_the_group_that_is_played(room: AtroposRoom) -> None:
    room.load("ThreadsEnv")
    assert rewards(room.play_one(["one"], 2)) == [1.0, 1.0]


def test_a_policy_that_fails_once_is_asked_again_for_what_is_missing_only(room: AtroposRoom) -> None:
    room.load("WordsEnv")
    rollouts = room.play_one(["one", RuntimeError("away"), "x"], 2)
    assert sorted(rewards(rollouts)) == [0.0, 1.0]
    assert len(room.policy.sampled) == 2


@pytest.mark.parametrize(
    ("name", "config", "args", "message"),
    [
        ("BrokenEnv", {}, {}, "setup of BrokenEnv: FileNotFoundError: words.parquet"),
        ("WordsEnv", {"thinking_mode": True}, {}, "thinking_mode: the policy samples as its trainer expects"),
        ("WordsEnv", {"worth": "much"}, {}, "WordsEnv cannot be made: ValidationError"),
        ("WordsEnv", {}, {"flags": ["--testing"]}, "slurm and testing have no meaning here"),
        ("WordsEnv", {}, {"flags": ["--openai.server_type=sglang"], "server_type": ""}, "'sglang' is not spoken here"),
        ("WordsEnv", {"tokenizer_name": "nobody/nothing"}, {}, "tokenizer nobody/nothing: OSError"),
        ("NoneEnv", {}, {}, "NoneEnv is not a BaseEnv class"),
        ("nowhere:Env", {}, {}, "nowhere cannot be imported by .*: ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_made_is_said_when_it_is_loaded(
    room: AtroposRoom, name: str, config: dict[str, Any], args: dict[str, Any], message: str
) -> None:
    with pytest.raises(RegistryError, match=message):
        room.load(name, config, **args)
