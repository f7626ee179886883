"""A session records what was sampled, once, in as few branches as the conversation allows."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from environments.chat.template import TemplateChat
from environments.config import SamplingParams
from environments.errors import ContextFull, SessionOver, TurnsOver, UnfollowableTurn
from environments.fakes import ScriptedPolicy
from environments.policy import Completion
from environments.session import Session
from environments.types import FunctionCall, Message, PlayedRollout, Problem, StopReason, TextPart, ToolCall

ASKED = [Message("system", "Be brief."), Message("user", "one?")]
SAMPLING = SamplingParams(max_turns=20)


def session(policy: Any = None, sampling: SamplingParams = SAMPLING, **options: Any) -> Session:
    policy = policy or ScriptedPolicy([f"reply {number}" for number in range(1, 20)])
    return Session(Problem(key="p", messages=ASKED), policy, TemplateChat(policy), sampling, **options)


def texts(rollout: PlayedRollout) -> list[str]:
    """What the policy sampled, as far as it trains, branch by branch."""
    found, at = [], 0
    for length in rollout.branch_lengths or [len(rollout.token_ids)]:
        part = range(at, at + length)
        at += length
        trained = [rollout.token_ids[place] for place in part if rollout.loss_mask[place]]
        found.append(bytes(token if token < 256 else ord("|") for token in trained).decode())
    return found


def play(*turns: Sequence[Message], **options: Any) -> PlayedRollout:
    """Ask for each of these conversations, where `...` stands for the reply to the one before, and end."""

    async def ask() -> PlayedRollout:
        played = session(**options)
        for messages in turns:
            await played.reply(messages)
        return played.end()

    return asyncio.run(ask())


def said(number: int, **fields: Any) -> Message:
    return Message("assistant", f"reply {number}", **fields)


def test_a_conversation_that_goes_on_is_one_branch() -> None:
    second = [*ASKED, said(1), Message("user", "two?")]
    rollout = play(ASKED, second, [*second, said(2), Message("user", "three?")])
    assert rollout.branch_lengths == []
    assert texts(rollout) == ["reply 1|reply 2|reply 3|"]
    assert [message.text for message in rollout.messages] == [
        "Be brief.",
        "one?",
        "reply 1",
        "two?",
        "reply 2",
        "three?",
        "reply 3",
    ]
    for mask, logprob in zip(rollout.loss_mask, rollout.inference_logprobs, strict=True):
        assert logprob == (math.log(0.5) if mask else 0.0)


@pytest.mark.parametrize(
    "echoed",
    [
        Message("assistant", " reply 1\n"),
        Message("assistant", [TextPart("reply"), TextPart(" 1")]),
        Message("assistant", "reply 1", reasoning_content="I thought."),
    ],
)
def test_a_reply_may_be_echoed_in_other_clothes(echoed: Message) -> None:
    rollout = play(ASKED, [*ASKED, echoed, Message("user", "two?")])
    assert rollout.branch_lengths == []
    assert texts(rollout) == ["reply 1|reply 2|"]


@pytest.mark.parametrize(
    "edited",
    [
        [ASKED[0], Message("user", "uno?"), said(1), Message("user", "two?")],
        [Message("system", "Be long."), ASKED[1], said(1), Message("user", "two?")],
        [*ASKED, Message("assistant", "reply I"), Message("user", "two?")],
        [ASKED[1], said(1), Message("user", "two?")],
    ],
)
def test_an_edited_history_begins_a_branch_and_what_was_sampled_trains_once(edited: list[Message]) -> None:
    rollout = play(ASKED, edited)
    assert texts(rollout) == ["reply 1|", "reply 2|"]
    assert sum(rollout.branch_lengths) == len(rollout.token_ids)
    assert rollout.earlier_branches == [[*ASKED, said(1)]]
    assert rollout.messages == [*edited, said(2)]


def test_a_return_to_an_earlier_turn_makes_a_tree() -> None:
    second = [*ASKED, said(1), Message("user", "two?")]
    other = [*ASKED, said(1), Message("user", "zwei?")]
    rollout = play(ASKED, second, other)
    assert texts(rollout) == ["reply 1|reply 2|", "reply 3|"]
    first = rollout.branch_lengths[0]
    common = rollout.token_ids.index(ord("w"), rollout.token_ids.index(ord("1")))
    assert rollout.token_ids[: common - 1] == rollout.token_ids[first : first + common - 1]
    assert rollout.messages[-2:] == [Message("user", "zwei?"), said(3)]


def test_the_same_request_again_is_another_reply_to_it() -> None:
    assert texts(play(ASKED, ASKED)) == ["reply 1|", "reply 2|"]


def test_other_tools_begin_a_branch() -> None:
    async def ask() -> PlayedRollout:
        played = session()
        await played.reply(ASKED, [])
        await played.reply(
            [*ASKED, said(1), Message("user", "two?")], [{"type": "function", "function": {"name": "a"}}]
        )
        return played.end()

    rollout = asyncio.run(ask())
    assert len(rollout.branch_lengths) == 2
    assert rollout.tools == [{"type": "function", "function": {"name": "a"}}]


def is_followed(sampled: str, echoed: str) -> bool:
    """Whether a conversation goes on from a call with these arguments, if a client echoes them so."""

    class Calling(TemplateChat):
        def parse(self, *_: Any) -> Message:
            return Message("assistant", None, tool_calls=[ToolCall("call_7", FunctionCall("add", sampled))])

    async def ask() -> PlayedRollout:
        policy = ScriptedPolicy(["x"])
        played = Session(Problem(key="p", messages=ASKED), policy, Calling(policy), SAMPLING)
        await played.reply(ASKED)
        call = Message("assistant", "", tool_calls=[ToolCall("mine", FunctionCall("add", echoed))])
        await played.reply([*ASKED, call, Message("tool", "3", tool_call_id="mine")])
        return played.end()

    return asyncio.run(ask()).branch_lengths == []


def test_calls_are_the_same_however_their_json_is_written_and_whatever_their_id() -> None:
    assert is_followed('{"a":1,"b":2}', '{"b": 2, "a": 1}')


@pytest.mark.parametrize(
    ("sampled", "echoed"),
    [
        ("1.0", "1"),
        ("1e3", "1000"),
        ("-0.0", "0"),
        ("1e20", "100000000000000000000"),
        ("1e300", "1e+300"),
        ("2.50", "2.5"),
        ('[1.0, {"y": 2.0}]', '[1,{"y":2}]'),
    ],
)
def test_a_call_is_the_same_where_a_client_of_javascript_writes_its_numbers(sampled: str, echoed: str) -> None:
    assert is_followed(f'{{"x": {sampled}}}', f'{{"x":{echoed}}}')


@pytest.mark.parametrize(("sampled", "echoed"), [("1.5", "1"), ("1.0", "2"), ("1.0", "true"), ("1.0", '"1"')])
def test_a_call_with_another_number_is_an_edited_history(sampled: str, echoed: str) -> None:
    assert not is_followed(f'{{"x": {sampled}}}', f'{{"x": {echoed}}}')


def test_where_the_format_cannot_go_on_exactly_the_turn_is_rendered_anew() -> None:
    class Forgetful(ScriptedPolicy):
        async def extend(self, *_: Any) -> list[int]:
            raise UnfollowableTurn

    rollout = play(ASKED, [*ASKED, said(1), Message("user", "two?")], policy=Forgetful(["reply 1", "reply 2"]))
    assert texts(rollout) == ["reply 1|", "reply 2|"]


def test_several_replies_to_one_request_are_branches_and_one_of_them_goes_on() -> None:
    async def ask() -> PlayedRollout:
        played = session()
        played.deliver(await played.ask(ASKED, n=3))
        await played.reply([*ASKED, said(2), Message("user", "two?")])
        return played.end()

    assert texts(asyncio.run(ask())) == ["reply 1|", "reply 3|", "reply 2|reply 4|"]


def test_of_replies_that_read_the_same_the_one_that_the_conversation_went_on_from_goes_on() -> None:
    """Two workers play one session, and the policy begins alike with both."""
    one = [*ASKED, Message("assistant", "same"), Message("user", "two?")]
    other = [*ASKED, Message("assistant", "same"), Message("user", "zwei?")]
    further = [*one, Message("assistant", "a"), Message("user", "three?")]
    policy = ScriptedPolicy(["same", "a", "same", "b", "c", "d"])
    rollout = play(ASKED, one, ASKED, other, further, [*further, Message("assistant", "c"), *ASKED], policy=policy)
    assert texts(rollout) == ["same|b|", "same|a|c|d|"]


def test_of_replies_that_read_the_same_and_lead_equally_far_the_newest_goes_on() -> None:
    async def ask() -> None:
        played = session(ScriptedPolicy(["same"]))
        turns = [played.deliver(await played.ask(ASKED))[0] for _ in range(3)]
        [next_one] = played.deliver(await played.ask([*ASKED, Message("assistant", "same"), Message("user", "two?")]))
        assert next_one.parent is turns[-1]

    asyncio.run(ask())


def test_of_the_same_tokens_those_that_the_prompt_goes_on_from_furthest_are_extended() -> None:
    async def ask() -> PlayedRollout:
        played = session(ScriptedPolicy(["same", "a", "same", "b"]))
        [first] = played.deliver(await played.ask_tokens([7, 8]))
        [second] = played.deliver(await played.ask_tokens([*first.token_ids, 9]))
        [again] = played.deliver(await played.ask_tokens([7, 8]))
        assert again.token_ids == first.token_ids
        [third] = played.deliver(await played.ask_tokens([*second.token_ids, 9]))
        assert third.parent is second
        return played.end()

    assert texts(asyncio.run(ask())) == ["same|", "same|a|b|"]


def test_what_nobody_got_trains_nothing() -> None:
    async def ask() -> PlayedRollout:
        played = session()
        await played.ask(ASKED)
        await played.reply(ASKED)
        return played.end()

    assert texts(asyncio.run(ask())) == ["reply 2|"]


def test_tokens_in_and_out_go_on_where_the_prompt_begins_with_what_was_sampled() -> None:
    async def ask() -> PlayedRollout:
        played = session()
        prompt = [7, 8]
        [first] = played.deliver(await played.ask_tokens(prompt))
        [second] = played.deliver(await played.ask_tokens([*first.token_ids, 9]))
        assert second.parent is first
        played.deliver(await played.ask_tokens([7, 8, 9]))
        return played.end()

    rollout = asyncio.run(ask())
    assert texts(rollout) == ["reply 1|reply 2|", "reply 3|"]
    assert rollout.token_ids[-len("reply 3|") - 3 :][:3] == [7, 8, 9]


def test_budgets_are_the_runs_and_a_client_may_ask_for_less() -> None:
    async def ask() -> None:
        policy = ScriptedPolicy(["reply 1", "reply 2"])
        played = session(policy, SamplingParams(max_tokens=5, max_turns=2, max_total_tokens=60))
        await played.ask(ASKED, max_tokens=3)
        await played.ask(ASKED, max_tokens=50)
        assert [asked.max_tokens for asked in policy.asked] == [3, 5]
        with pytest.raises(ContextFull, match="no room"):
            await played.ask([Message("user", "x" * 100)])
        assert played.end().stop_reason is StopReason.LENGTH

    asyncio.run(ask())


def test_a_session_asks_no_more_often_than_it_may_and_not_at_all_when_it_is_over() -> None:
    async def ask() -> None:
        played = session(sampling=SamplingParams(max_turns=1))
        await played.reply()
        with pytest.raises(TurnsOver):
            await played.reply([*ASKED, said(1), Message("user", "two?")])
        late = session()
        asked = await late.ask(ASKED)
        assert played.end().stop_reason is StopReason.TURNS
        late.end()
        with pytest.raises(SessionOver):
            late.deliver(asked)
        with pytest.raises(SessionOver):
            await late.reply()

    asyncio.run(ask())


def test_replies_count_against_the_turns_each_and_while_they_are_sampled() -> None:
    class Waiting(ScriptedPolicy):
        async def sample(self, *asked: Any) -> list[Completion]:
            await asyncio.sleep(0)
            return await super().sample(*asked)

    async def ask() -> None:
        played = session(Waiting(["x"]), SamplingParams(max_turns=3))
        with pytest.raises(TurnsOver):
            await played.ask(ASKED, n=4)
        one, other = await played.ask(ASKED, n=2), await played.ask(ASKED, n=2)
        played.deliver(one)
        with pytest.raises(TurnsOver):
            played.deliver(other)
        results = await asyncio.gather(*(played.ask(ASKED) for _ in range(3)), return_exceptions=True)
        assert [isinstance(result, TurnsOver) for result in results] == [False, True, True]
        assert len(played.turns) == 2

    asyncio.run(ask())


def test_what_cannot_fit_is_refused_before_anything_is_rendered() -> None:
    class Unasked(ScriptedPolicy):
        async def render(self, *_: Any) -> list[int]:
            raise AssertionError("rendered")

    async def ask() -> None:
        policy = Unasked(["x"])
        with pytest.raises(ContextFull, match="far longer"):
            await session(policy, SamplingParams(max_total_tokens=10)).ask([Message("user", "x" * 100_000)])

    asyncio.run(ask())


def test_an_agent_that_was_refused_and_went_on_was_not_cut() -> None:
    async def ask() -> PlayedRollout:
        played = session(sampling=SamplingParams(max_turns=5, max_total_tokens=90))
        with pytest.raises(ContextFull):
            await played.reply([Message("user", "x" * 100)])
        await played.reply(ASKED)
        return played.end()

    assert asyncio.run(ask()).stop_reason is StopReason.STOP


def test_the_oldest_version_counts_whatever_comes_back_first() -> None:
    versions = iter([3, 3, 5, 5])

    async def ask() -> PlayedRollout:
        played = session(version=lambda: next(versions))
        slow, quick = await played.ask(ASKED), await played.ask(ASKED)
        played.deliver(quick)
        played.deliver(slow)
        return played.end()

    rollout = asyncio.run(ask())
    assert (rollout.dispatch_policy_version, rollout.first_policy_version, rollout.last_policy_version) == (3, 3, 5)


def test_versions_are_those_around_all_requests() -> None:
    versions = iter([3, 4, 5, 6])

    async def ask() -> PlayedRollout:
        played = session(version=lambda: next(versions))
        await played.reply()
        await played.reply([*ASKED, said(1), Message("user", "two?")])
        return played.end()

    rollout = asyncio.run(ask())
    assert rollout.dispatch_policy_version == 3
    assert (rollout.first_policy_version, rollout.last_policy_version) == (3, 6)


def test_versions_are_those_of_all_replies_to_a_first_request() -> None:
    class Labelled(ScriptedPolicy):
        async def sample(self, *asked: Any) -> list[Completion]:
            return [
                msgspec.structs.replace(reply, first_policy_version=first, last_policy_version=last)
                for reply, (first, last) in zip(await super().sample(*asked), [(3, 6), (4, 5)], strict=True)
            ]

    async def ask() -> PlayedRollout:
        played = session(Labelled(["one", "two"]), version=lambda: 3)
        played.deliver(await played.ask(ASKED, n=2))
        return played.end()

    rollout = asyncio.run(ask())
    assert (rollout.first_policy_version, rollout.last_policy_version) == (3, 6)


def test_a_session_that_never_asked_leaves_its_problem_and_no_token() -> None:
    rollout = session().end()
    assert (rollout.messages, rollout.token_ids) == (ASKED, [])
