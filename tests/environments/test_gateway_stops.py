"""A client's stop ends a reply: its text ends before it, and what was sampled trains, the stop included."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from environments.chat.rendered import RenderedChat
from environments.chat.template import TemplateChat
from environments.chat.tokenizer import ChatTokenizer
from environments.config import SamplingParams, Stops
from environments.fakes import END as END_TOKEN
from environments.fakes import ScriptedPolicy
from environments.policy import Completion
from environments.session import Session
from environments.types import Message, StopReason
from tests.environments.speaking import END, PROBLEM, check_recorded, run, speaking
from trainers.model.tiny_tools import tool_tokenizer

pytestmark = pytest.mark.slow  # imports transformers, and trains a tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tools")
    tool_tokenizer().save_pretrained(made)
    return made


def test_a_loop_that_stops_before_each_observation_is_one_branch_of_what_was_sampled(directory: Path) -> None:
    replies = [
        f"Thought: I add.\nAction: 1+2\nObservation: 5 I guess{END}",
        "<think>\nHm</think>Thought: 3.\nObservation",
        f"Answer: 3{END}",
    ]

    async def play() -> None:
        async with speaking(directory, replies) as (session, address, policy):
            async with AsyncOpenAI(base_url=address.base_url, api_key=address.api_key) as client:
                messages: list[Any] = [{"role": "user", "content": "1 + 2?"}]
                said = []
                for turn in range(3):
                    answer = await client.chat.completions.create(
                        model="any", messages=messages, stop=["\nObservation", "Never"], stream=False
                    )
                    [choice] = answer.choices
                    assert choice.finish_reason == "stop"
                    said.append(choice.message.content)
                    messages += [choice.message, {"role": "user", "content": f"Observation: {turn}"}]
            assert said == ["Thought: I add.\nAction: 1+2", "Thought: 3.", "Answer: 3"]
            rollout = session.end()
            check_recorded(rollout, policy.log)
            assert rollout.stop_reason is StopReason.STOP
            text = ChatTokenizer(directory).decode(rollout.token_ids)
            # Not the policy's, but there: the end of a turn that it was not let end.
            assert f"Action: 1+2\nObservation{END}\n<|im_start|>user\nObservation: 0{END}\n" in text
            assert "I guess" not in text

    run(play())


def test_each_of_several_replies_ends_at_its_own_stop(directory: Path) -> None:
    replies = [f"one, two, three{END}", f"no comma{END}", f"four; five{END}"]

    async def play() -> None:
        async with speaking(directory, replies) as (session, address, policy):
            async with AsyncOpenAI(base_url=address.base_url, api_key=address.api_key) as client:
                asked: Any = {"model": "any", "messages": [{"role": "user", "content": "Count."}]}
                answer = await client.chat.completions.create(**asked, n=3, stop=[",", ";"])
            assert [choice.message.content for choice in answer.choices] == ["one", "no comma", "four"]
            rollout = session.end()
            assert len(rollout.branch_lengths) == 3
            assert sum(rollout.loss_mask) == sum(len(completion.token_ids) for _, completion in policy.log)

    run(play())


def test_tokens_and_texts_of_completions_end_at_strings_and_at_token_ids() -> None:
    async def play() -> None:
        policy = ScriptedPolicy(["ab\ncd"])
        session = Session(PROBLEM, policy, TemplateChat(policy), SamplingParams(max_turns=9))
        by_string = await session.ask_tokens([7], stops=Stops(strings=("\nc",)))
        by_token = await session.ask_tokens([7], stops=Stops(token_ids=(ord("b"),)))
        assert [each.completions[0].token_ids for each in (by_string, by_token)] == [[*b"ab\nc"], [*b"ab"]]
        assert [each.completions[0].text for each in (by_string, by_token)] == ["ab", "a"]
        assert END_TOKEN not in by_string.completions[0].token_ids

    run(play())


@pytest.mark.parametrize(
    "wrong",
    [
        {"stop": [""]},
        {"stop": "x" * 101},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": [1] * 65},
    ],
)
def test_stops_that_are_too_many_too_long_or_nothing_are_refused(directory: Path, wrong: dict[str, Any]) -> None:
    async def play() -> None:
        async with speaking(directory, []) as (_, address, _), httpx.AsyncClient() as http:
            root = address.base_url.removesuffix("/v1")
            for path, asked in (
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]} | wrong),
                ("/v1/completions", {"prompt": [7]} | wrong),
                ("/inference/v1/generate", {"token_ids": [7], "sampling_params": wrong}),
            ):
                answer = await http.post(root + path, json=asked)
                assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
                assert "stop" in answer.json()["error"]["message"]

    run(play())


@pytest.mark.parametrize(
    ("reply", "stop", "content", "reasoning"),
    [
        ("a\n\nObs", "\n\nObs", "a", None),
        ("a\n", "\n", "a", None),
        ("Zürich 👩‍👩‍👧 und", "👧 und", "Zürich 👩‍👩‍", None),
        ("<think>\nI wonder whether", "whether", None, "I wonder"),
        ("<think>\nHm.\n</think>\n\nSo: three", "three", "So:", "Hm."),
        ("stop", "stop", "", None),
        ('<tool_call>{"name": "add"', '"add"', '<tool_call>{"name": ', None),
    ],
)
def test_a_message_ends_before_the_stop_wherever_that_begins(
    directory: Path, reply: str, stop: str, content: str | None, reasoning: str | None
) -> None:
    tokenizer = ChatTokenizer(directory)
    token_ids = tokenizer.encode(reply)
    sampled = Completion(
        token_ids=token_ids, logprobs=[-0.5] * len(token_ids), text="", finish_reason="stop", stopped_by=stop
    )
    message = RenderedChat(tokenizer, "qwen3").parse([], sampled, [])
    assert (message.content, (message.reasoning_content or "").strip() or None) == (content, reasoning)


def test_behind_a_stop_a_template_alone_cannot_go_on_exactly_and_begins_a_branch() -> None:
    async def play() -> list[int]:
        policy = ScriptedPolicy(["ab\ncd"])
        session = Session(PROBLEM, policy, TemplateChat(policy), SamplingParams(max_turns=9))
        [turn] = session.deliver(await session.ask(PROBLEM.messages, stops=Stops(strings=("\nc",))))
        assert turn.reply == Message("assistant", "ab")
        session.deliver(await session.ask([*PROBLEM.messages, turn.reply, Message("user", "and?")]))
        return session.end().branch_lengths

    assert len(asyncio.run(play())) == 2
