"""Matches: an episode of several seats leaves a rollout of every seat that the run plays, and breaks as a whole."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from environments import registry, seats
from environments.config import SamplingParams
from environments.env import Environment, NoArgs, PolicySession
from environments.errors import PolicyUnavailable, ProblemError
from environments.fakes import ScriptedPolicy
from environments.kit.playing import ScriptedSession
from environments.runner import Player, play_group
from environments.types import ErrorKind, FinishedRollout, Message, PlayedRollout, Problem, Split, StopReason
from tests.environments.test_isolated_play import started

TURNS = SamplingParams(max_turns=4)


class Higher(Environment[NoArgs]):
    """Each says a digit, the second knowing the first one's; the higher has won. Who says `end` ends it for both."""

    name = "higher"
    seats = ("one", "two")

    def __init__(self, args: NoArgs | None = None) -> None:
        super().__init__(args or NoArgs())

    def count(self, split: Split) -> int:
        return 1

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(key="p", messages=[Message("user", "say a digit")])

    async def play_match(self, problem: Problem, sessions: Mapping[str, PolicySession]) -> None:
        said: dict[str, str] = {}
        for seat in self.seats:
            told = [*problem.messages, Message("user", f"you are {seat}, they said {list(said.values())}")]
            said[seat] = (await sessions[seat].reply(told)).text
            if said[seat] == "end":
                break
        for seat in self.seats:
            sessions[seat].note({"won": seat == max(said, key=lambda each: said[each])})

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        return float(rollout.notes["won"])


def play(
    replies: Sequence[str | Exception],
    matches: int = 1,
    environment: Environment[Any] | None = None,
    others: Mapping[str, Player] | None = None,
    sampling: SamplingParams = TURNS,
) -> list[PlayedRollout]:
    environment = environment or Higher()
    problem, policy = Higher().problem(Split.TRAIN, 0), ScriptedPolicy(replies)
    return asyncio.run(play_group(environment, problem, policy, sampling, matches, deadline_s=5, others=others))


def replier(text: str) -> Player:
    return lambda problem: ScriptedSession(problem, [Message("assistant", text)])


def test_every_seat_of_every_match_leaves_a_rollout_with_its_own_conversation_and_reward() -> None:
    rollouts = play(["3", "7"], matches=2)
    assert [rollout.seat for rollout in rollouts] == ["one", "two", "one", "two"]
    assert sorted(rollout.reward or 0.0 for rollout in rollouts) == [0.0, 0.0, 1.0, 1.0]
    for rollout in rollouts:
        assert f"you are {rollout.seat}" in rollout.messages[1].text
        assert sum(rollout.loss_mask) == 2  # a digit, and the end of the turn


def test_a_seat_of_somebody_else_leaves_none_and_is_played_all_the_same() -> None:
    [rollout] = play(["3"], others={"two": replier("7")})
    assert (rollout.seat, rollout.reward) == ("one", 0.0)
    [rollout] = play(["3"], others={"one": replier("1")})
    assert (rollout.seat, rollout.reward) == ("two", 1.0)
    assert "they said ['1']" in rollout.messages[1].text


@pytest.mark.parametrize("broken", [["3", PolicyUnavailable("gone")], [PolicyUnavailable("gone"), "3"]])
def test_one_broken_seat_breaks_the_match_with_its_reason_on_every_seat(broken: list[str | Exception]) -> None:
    rollouts = play(broken)
    for rollout in rollouts:
        assert (rollout.reward, rollout.stop_reason) == (None, StopReason.ERROR)
        assert rollout.error is not None
        assert (rollout.error.kind, rollout.error.message) == (ErrorKind.POLICY, "gone")
    assert [rollout.seat for rollout in rollouts] == ["one", "two"]


def test_a_seat_that_was_never_asked_has_a_reward_and_nothing_to_train() -> None:
    one, two = play(["end"])
    assert (one.reward, two.reward) == (1.0, 0.0)
    assert (two.token_ids, two.error, two.stop_reason) == ([], None, StopReason.STOP)


def test_a_budget_that_ends_a_match_is_scored_where_the_environment_can() -> None:
    rollouts = play(["3", "4"], sampling=SamplingParams(max_tokens=1))
    assert [rollout.stop_reason for rollout in rollouts] == [StopReason.LENGTH, StopReason.LENGTH]
    assert [rollout.error for rollout in rollouts] == [None, None]


def test_who_sits_where_has_to_be_said_of_each_seat_and_of_no_other() -> None:
    seats.check(Higher(), {"one": seats.RUN, "two": "teacher"})
    for said in ({}, {"one": seats.RUN}, {"one": seats.RUN, "two": seats.RUN, "three": seats.RUN}):
        with pytest.raises(ProblemError, match="higher has the seats one, two"):
            seats.check(Higher(), said)
    assert seats.own({"one": "teacher", "two": seats.RUN}) == ["two"]
    assert seats.own({}) == [""]


def test_the_registry_knows_the_seats_of_ours_without_importing_them() -> None:
    for name in filter(registry.is_built_in, registry.names()):
        assert registry.seats_of(name) == registry.find_class(name).seats
    assert registry.seats_of("tests.environments.test_seats:Higher") == ()


@pytest.mark.slow  # starts a process
def test_a_match_of_an_environment_in_a_process_of_its_own_is_the_same() -> None:
    async def playing() -> list[PlayedRollout]:
        environment = await started("tests.environments.test_seats:Higher")
        try:
            await environment.load({})
            assert environment.seats == ("one", "two")
            problem, policy = await environment.ask_problem(Split.TRAIN, 0), ScriptedPolicy(["3", "7"])
            return await play_group(environment, problem, policy, TURNS, 1, deadline_s=30)
        finally:
            await environment.aclose()

    rollouts = asyncio.run(playing())
    assert [(rollout.seat, rollout.reward, rollout.error) for rollout in rollouts] == [
        ("one", 0.0, None),
        ("two", 1.0, None),
    ]
