"""Playing a group: whatever breaks becomes data on the rollouts it broke, and on no others."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from environments.config import SamplingParams
from environments.env import Environment
from environments.errors import BudgetError, ContextFull, PolicyUnavailable, ToolError, boundary
from environments.fakes import END, START, ScriptedPolicy, TwoTurns
from environments.policy import Completion
from environments.runner import play_group
from environments.types import ErrorKind, JsonObject, Message, PlayedRollout, Problem, Split, StopReason

TWO_TURNS = SamplingParams(max_turns=2)
TOOL = {"type": "function", "function": {"name": "add"}}


def play(
    environment: Environment[Any],
    policy: Any,
    sampling: SamplingParams = TWO_TURNS,
    n: int = 2,
    *,
    deadline_s: float = 5.0,
    version: Callable[[], int | None] = lambda: 3,
) -> list[PlayedRollout]:
    problem = environment.problem(Split.TRAIN, 0)
    return asyncio.run(
        play_group(
            environment, problem, policy, sampling, n, deadline_s=deadline_s, version=version, replica="inference-0"
        )
    )


def assert_consistent(rollout: PlayedRollout) -> None:
    assert len(rollout.token_ids) == len(rollout.loss_mask) == len(rollout.inference_logprobs)
    for mask, logprob in zip(rollout.loss_mask, rollout.inference_logprobs, strict=True):
        assert logprob == (math.log(0.5) if mask else 0.0)
    assert (rollout.reward is None) == (rollout.error is not None) == (rollout.stop_reason is StopReason.ERROR)


def test_the_policy_is_told_of_the_tools_of_a_problem_and_the_rollout_keeps_them() -> None:
    class Adding(TwoTurns):
        def problem(self, split: Split, index: int) -> Problem:
            return msgspec.structs.replace(super().problem(split, index), tools=[TOOL])

    [rollout] = play(Adding(), ScriptedPolicy(["one"]), n=1)
    assert rollout.tools == [TOOL]
    assert bytes(rollout.token_ids[: len(msgspec.json.encode([TOOL]))]) == msgspec.json.encode([TOOL])


def test_a_group_of_two_turns_is_played_scored_and_attributed() -> None:
    rollouts = play(TwoTurns(), ScriptedPolicy(["one", "two"]))
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0]
    assert [rollout.metrics for rollout in rollouts] == [{"last_right": 1.0}, {"last_right": 0.0}]
    for rollout in rollouts:
        assert_consistent(rollout)
        assert [message.role for message in rollout.messages] == ["user", "assistant", "user", "assistant"]
        assert rollout.stop_reason is StopReason.STOP
        assert rollout.replica == "inference-0"
        assert rollout.generation_s >= 0


def test_only_sampled_tokens_train_and_the_end_of_turn_is_one_of_them() -> None:
    (rollout,) = play(TwoTurns(), ScriptedPolicy(["one"]), n=1)
    prompt = [START, *b"user\none", END, START, *b"assistant\n"]
    reply = [*b"one", END]
    between = [START, *b"user\nagain", END, START, *b"assistant\n"]
    assert rollout.token_ids == prompt + reply + between + reply
    assert rollout.loss_mask == [0] * len(prompt) + [1] * 4 + [0] * len(between) + [1] * 4


def test_a_truncated_reply_ends_the_episode_without_an_error() -> None:
    (rollout,) = play(TwoTurns(), ScriptedPolicy(["one hundred"]), SamplingParams(max_tokens=3, max_turns=2), n=1)
    assert rollout.stop_reason is StopReason.LENGTH
    assert rollout.messages[-1].content == "one"
    assert rollout.reward == 1.0
    assert sum(rollout.loss_mask) == 3


def test_the_turn_budget_ends_the_episode_where_the_environment_would_go_on() -> None:
    (rollout,) = play(TwoTurns(), ScriptedPolicy(["one"]), SamplingParams(max_turns=1), n=1)
    assert rollout.stop_reason is StopReason.TURNS
    assert [message.role for message in rollout.messages] == ["user", "assistant"]


def test_the_token_budget_of_a_rollout_cuts_its_last_turn() -> None:
    whole = play(TwoTurns(), ScriptedPolicy(["one"]), n=1)[0]
    total = len(whole.token_ids) - 2
    policy = ScriptedPolicy(["one"])
    (rollout,) = play(TwoTurns(), policy, SamplingParams(max_turns=2, max_total_tokens=total), n=1)
    assert len(rollout.token_ids) == total
    assert rollout.stop_reason is StopReason.LENGTH
    assert [asked.max_tokens for asked in policy.asked] == [total - 21, 2]
    (rollout,) = play(TwoTurns(), ScriptedPolicy(["one"]), SamplingParams(max_turns=2, max_total_tokens=30), n=1)
    assert (rollout.stop_reason, len(rollout.messages)) == (StopReason.LENGTH, 2)


def test_a_server_that_renders_no_further_than_its_context_ends_the_episode_where_it_is() -> None:
    (rollout,) = play(TwoTurns(), Cramped(["one"]), n=1)
    assert rollout.error is None
    assert (rollout.stop_reason, len(rollout.messages)) == (StopReason.LENGTH, 2)


def test_the_versions_around_each_request_bound_the_rollout() -> None:
    versions = iter([3, 4, 5, 6])
    (rollout,) = play(TwoTurns(), ScriptedPolicy(["one"]), n=1, version=lambda: next(versions))
    assert rollout.dispatch_policy_version == 3
    assert (rollout.first_policy_version, rollout.last_policy_version) == (3, 6)


def test_the_servers_own_labels_beat_the_clock() -> None:
    class Labelled(ScriptedPolicy):
        async def sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
            return [
                Completion(
                    token_ids=[1],
                    logprobs=[-1.0],
                    text="one",
                    finish_reason="length",
                    first_policy_version=4,
                    last_policy_version=5,
                )
            ]

    versions = iter([3, 9])
    (rollout,) = play(TwoTurns(), Labelled([]), n=1, version=lambda: next(versions))
    assert rollout.dispatch_policy_version == 3
    assert (rollout.first_policy_version, rollout.last_policy_version) == (4, 5)


# ----- What breaks -----


class BadStart(TwoTurns):
    async def start(self, problem: Problem) -> list[str]:
        raise OSError("no sandbox left")


class BadStep(TwoTurns):
    async def step(self, state: list[str], reply: Message) -> list[Message] | None:
        raise KeyError("answer")


class BadTool(TwoTurns):
    async def step(self, state: list[str], reply: Message) -> list[Message] | None:
        with boundary(ErrorKind.TOOL):
            raise RuntimeError("compiler crashed")


class SpeaksAsAssistant(TwoTurns):
    async def step(self, state: list[str], reply: Message) -> list[Message] | None:
        return [Message("assistant", "I am the policy now")]


class Hangs(TwoTurns):
    async def step(self, state: list[str], reply: Message) -> list[Message] | None:
        await asyncio.Event().wait()
        return None


class OutOfBudget(TwoTurns):
    async def step(self, state: list[str], reply: Message) -> list[Message] | None:
        raise BudgetError("no tool calls left")


class BadReward(TwoTurns):
    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        raise ZeroDivisionError("division by zero")


class NanReward(TwoTurns):
    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        return math.nan


class NanMetric(TwoTurns):
    def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
        rollout.metrics["speed"] = math.inf
        return 1.0


class TooFewRewards(TwoTurns):
    async def score_group(self, problem: Problem, rollouts: Sequence[PlayedRollout]) -> list[float]:
        return [1.0]


class ScoringHangs(TwoTurns):
    async def score_group(self, problem: Problem, rollouts: Sequence[PlayedRollout]) -> list[float]:
        await asyncio.Event().wait()
        return []


class TimesOutInScoring(TwoTurns):
    async def score_group(self, problem: Problem, rollouts: Sequence[PlayedRollout]) -> list[float]:
        raise TimeoutError("judge did not answer")


class Unsound(ScriptedPolicy):
    """Renders a further turn again instead of appending to it."""

    async def extend(
        self,
        token_ids: list[int],
        messages: Sequence[Message],
        added: Sequence[Message],
        tools: Sequence[JsonObject] = (),
    ) -> list[int]:
        return [0, *token_ids]


class Cramped(ScriptedPolicy):
    async def extend(
        self,
        token_ids: list[int],
        messages: Sequence[Message],
        added: Sequence[Message],
        tools: Sequence[JsonObject] = (),
    ) -> list[int]:
        raise ContextFull("at most 512 tokens")


class TooFew(ScriptedPolicy):
    async def sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
        return []


class Loud(ScriptedPolicy):
    async def render(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> list[int]:
        raise ValueError("no chat template")


ONE = ScriptedPolicy(["one"])


@pytest.mark.parametrize(
    ("environment", "policy", "kind", "type_", "words"),
    [
        (BadStart(), ONE, ErrorKind.ENVIRONMENT, "OSError", "no sandbox left"),
        (BadStep(), ONE, ErrorKind.ENVIRONMENT, "KeyError", "answer"),
        (SpeaksAsAssistant(), ONE, ErrorKind.ENVIRONMENT, "ProblemError", "spoke as the assistant"),
        (BadTool(), ONE, ErrorKind.TOOL, "RuntimeError", "compiler crashed"),
        (OutOfBudget(), ONE, ErrorKind.BUDGET, "BudgetError", "no tool calls left"),
        (Hangs(), ONE, ErrorKind.BUDGET, "BudgetError", "not over within 0.2 s"),
        (TwoTurns(), ScriptedPolicy([PolicyUnavailable("gone")]), ErrorKind.POLICY, "PolicyUnavailable", "gone"),
        (TwoTurns(), ScriptedPolicy([ValueError("odd")]), ErrorKind.POLICY, "ValueError", "odd"),
        (TwoTurns(), Loud([]), ErrorKind.POLICY, "ValueError", "no chat template"),
        (TwoTurns(), TooFew([]), ErrorKind.POLICY, "ValueError", "0 replies for 2"),
        (TwoTurns(), Unsound(["one"]), ErrorKind.POLICY, "InvalidAnswer", "do not start with the tokens"),
        (BadReward(), ONE, ErrorKind.REWARD, "ZeroDivisionError", "division by zero"),
        (NanReward(), ONE, ErrorKind.REWARD, "RewardError", "nan, not a finite number"),
        (NanMetric(), ONE, ErrorKind.REWARD, "RewardError", "'speed' is inf"),
        (TooFewRewards(), ONE, ErrorKind.REWARD, "RewardError", "1 rewards for 2 rollouts"),
        (TimesOutInScoring(), ONE, ErrorKind.REWARD, "TimeoutError", "judge did not answer"),
        (ScoringHangs(), ONE, ErrorKind.BUDGET, "BudgetError", "Scoring was not over"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Environment | ScriptedPolicy) else None,
)
def test_a_failure_becomes_data_on_every_rollout_it_broke(
    environment: TwoTurns, policy: ScriptedPolicy, kind: ErrorKind, type_: str, words: str
) -> None:
    rollouts = play(environment, policy, deadline_s=0.2 if "not over" in words else 30.0)
    assert len(rollouts) == 2
    for rollout in rollouts:
        assert rollout.error is not None
        assert (rollout.error.kind, rollout.error.type) == (kind, type_)
        assert words in rollout.error.message
        assert_consistent(rollout)


def test_the_error_shows_where_it_began() -> None:
    rollout = play(BadStep(), ONE)[0]
    assert rollout.error is not None
    assert 'raise KeyError("answer")' in rollout.error.traceback


def test_a_prompt_without_room_for_a_reply_is_a_budget_error() -> None:
    rollouts = play(TwoTurns(), ONE, SamplingParams(max_total_tokens=21))
    assert [rollout.error.kind for rollout in rollouts if rollout.error] == [ErrorKind.BUDGET] * 2


def test_one_failed_episode_leaves_the_others_their_rewards() -> None:
    class SecondBreaks(TwoTurns):
        async def step(self, state: list[str], reply: Message) -> list[Message] | None:
            if reply.content == "two":
                raise ToolError("no such word")
            return None

        async def score_group(self, problem: Problem, rollouts: Sequence[PlayedRollout]) -> list[float]:
            return [float(len(rollouts))] * len(rollouts)

    rollouts = play(SecondBreaks(), ScriptedPolicy(["one", "two", "three"]), n=3)
    assert [rollout.reward for rollout in rollouts] == [2.0, None, 2.0]
    # What was played before the failure is kept as evidence.
    assert rollouts[1].messages[-1].content == "two"
    assert sum(rollouts[1].loss_mask) == 4


def test_one_unscorable_rollout_leaves_the_others_their_rewards() -> None:
    class OnlyOne(TwoTurns):
        async def step(self, state: list[str], reply: Message) -> list[Message] | None:
            return None

        def reward(self, problem: Problem, rollout: PlayedRollout) -> float:
            return {"one": 1.0}[rollout.messages[-1].content]

    rollouts = play(OnlyOne(), ScriptedPolicy(["one", "two"]))
    assert [rollout.reward for rollout in rollouts] == [1.0, None]
    assert rollouts[1].error is not None
    assert rollouts[1].error.kind is ErrorKind.REWARD


def test_cancelling_a_group_is_not_mistaken_for_a_failure() -> None:
    class Waits(TwoTurns):
        async def step(self, state: list[str], reply: Message) -> list[Message] | None:
            stepping.set()
            await asyncio.Event().wait()
            return None

    stepping = asyncio.Event()

    async def cancel() -> None:
        problem = Waits().problem(Split.TRAIN, 0)
        group = asyncio.create_task(play_group(Waits(), problem, ONE, TWO_TURNS, 2, deadline_s=30))
        await asyncio.wait_for(stepping.wait(), 30)
        group.cancel()
        await group

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
