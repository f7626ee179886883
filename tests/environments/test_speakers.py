"""A model that shows no tokens plays as any policy does: what it said is scored, and there is nothing to train on."""

import asyncio
from collections.abc import Sequence

from environments.config import SamplingParams
from environments.env import Environment, NoArgs, last_reply
from environments.errors import PolicyUnavailable
from environments.figures import COMPLETION_TOKENS, PROMPT_TOKENS, REPLIES, of_group
from environments.library.calculator import Calculator, CalculatorArgs
from environments.library.kuhn_poker.environment import KuhnPoker, KuhnPokerArgs
from environments.runner import play_group
from environments.speakers import Speaker, SpokenSession
from environments.types import (
    ChatAnswer,
    FinishedRollout,
    FunctionCall,
    JsonObject,
    Message,
    PlayedGroup,
    PlayedRollout,
    Problem,
    Split,
    StopReason,
    ToolCall,
)

PARAMS = SamplingParams(max_turns=8, temperature=0.5)


class Scripted(Speaker):
    """Says one thing after another; an exception among them is raised."""

    def __init__(self, replies: Sequence[str | Message | Exception], finish_reason: str = "stop") -> None:
        self._replies = list(replies)
        self._finish_reason = finish_reason
        self.heard: list[list[Message]] = []

    async def speak(
        self, messages: Sequence[Message], tools: Sequence[JsonObject], sampling: SamplingParams
    ) -> ChatAnswer:
        self.heard.append(list(messages))
        assert sampling.temperature == PARAMS.temperature
        said = self._replies[(len(self.heard) - 1) % len(self._replies)]
        if isinstance(said, Exception):
            raise said
        message = said if isinstance(said, Message) else Message("assistant", said)
        return ChatAnswer(
            message=message,
            finish_reason="length" if self._finish_reason == "length" else "stop",
            prompt_tokens=10,
            completion_tokens=3,
        )


def played(environment: Environment, speaker: Speaker, rollouts: int = 1) -> list[PlayedRollout]:
    problem = environment.problem(Split.TRAIN, 0)
    return asyncio.run(play_group(environment, problem, speaker, PARAMS, rollouts, deadline_s=5))


class Counting(Environment[NoArgs]):
    """Two turns; the reward is how long the last word is."""

    name = "counting"

    def count(self, split: Split) -> int:
        return 1

    def problem(self, split: Split, index: int) -> Problem:
        return Problem(key="one", messages=[Message("user", "Count.")])

    async def step(self, state: object, reply: Message) -> list[Message] | None:
        return [Message("user", "Go on.")] if reply.text == "one" else None

    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        return float(len(last_reply(rollout)))


def test_what_it_said_over_turns_is_scored_and_has_no_token() -> None:
    speaker = Scripted(["one", "three"])
    [rollout] = played(Counting(NoArgs()), speaker)
    assert [message.text for message in rollout.messages] == ["Count.", "one", "Go on.", "three"]
    assert (rollout.reward, rollout.error, rollout.token_ids) == (5.0, None, [])
    assert rollout.metrics == {PROMPT_TOKENS: 20.0, COMPLETION_TOKENS: 6.0}
    assert [len(each) for each in speaker.heard] == [1, 3]


def test_tool_calls_go_through() -> None:
    environment = Calculator(CalculatorArgs())
    problem = environment.problem(Split.TRAIN, 0)
    solution = environment.solution(problem)
    assert solution is not None
    replies = [message for message in solution if message.role == "assistant"]
    assert replies[0].tool_calls[0] == ToolCall(
        replies[0].tool_calls[0].id, FunctionCall("add", replies[0].tool_calls[0].function.arguments)
    )
    [rollout] = played(environment, Scripted(replies))
    assert rollout.reward == 1.0
    assert [message.role for message in rollout.messages].count("tool") == 1


def test_one_that_fails_fails_its_own_rollout_only() -> None:
    speaker = Scripted([PolicyUnavailable("away"), "three", "three"])
    rollouts = played(Counting(NoArgs()), speaker, 3)
    assert [rollout.error.type if rollout.error else rollout.reward for rollout in rollouts] == [
        "PolicyUnavailable",
        5.0,
        5.0,
    ]


def test_a_reply_that_was_cut_truncates() -> None:
    [rollout] = played(Counting(NoArgs()), Scripted(["one"], finish_reason="length"))
    assert rollout.stop_reason is StopReason.LENGTH


def test_its_tokens_are_counted_where_figures_are() -> None:
    rollouts = played(Counting(NoArgs()), Scripted(["three"]), 4)
    group = PlayedGroup(environment="counting", problem_key="one", rollouts=rollouts)
    assert of_group(group).tokens == 12


def test_one_takes_a_seat_and_the_other_leaves_the_rollouts() -> None:
    environment = KuhnPoker(KuhnPokerArgs())
    own, other = Scripted(["<action>bet</action>"]), Scripted(["<action>fold</action>"])
    rollouts = asyncio.run(
        play_group(
            environment,
            environment.problem(Split.TRAIN, 0),
            own,
            PARAMS,
            2,
            deadline_s=5,
            others={environment.seats[1]: lambda problem: SpokenSession(problem, other, PARAMS)},
        )
    )
    assert [rollout.seat for rollout in rollouts] == [environment.seats[0]] * 2
    assert all(rollout.error is None for rollout in rollouts)
    assert other.heard


def test_of_a_conversation_that_its_environment_wrote_anew_only_what_it_still_says_counts() -> None:
    environment = KuhnPoker(KuhnPokerArgs())
    own, other = Scripted(["I wait. <action>pass</action>"]), Scripted(["<action>bet</action>"])
    problem = environment.problem(Split.TRAIN, 0)
    others = {environment.seats[1]: lambda problem: SpokenSession(problem, other, PARAMS)}
    [rollout] = asyncio.run(play_group(environment, problem, own, PARAMS, 1, deadline_s=5, others=others))
    said = [message.text for message in rollout.messages if message.role == "assistant"]
    assert said == ["<action>pass</action>", "I wait. <action>pass</action>"]
    assert len(own.heard) == 2
    assert rollout.metrics[REPLIES] == 1.0


def test_what_stands_before_words_of_an_assistant_that_nobody_asked_for_does_not_count() -> None:
    async def play() -> FinishedRollout:
        session = SpokenSession(Counting(NoArgs()).problem(Split.TRAIN, 0), Scripted(["one", "three"]), PARAMS)
        said = [*session.problem.messages, await session.reply()]
        await session.reply([*said, Message("assistant", "ahem"), Message("user", "Go on.")])
        return session.end()

    rollout = asyncio.run(play())
    assert [message.text for message in rollout.messages] == ["Count.", "one", "ahem", "Go on.", "three"]
    assert rollout.metrics[REPLIES] == 1.0
