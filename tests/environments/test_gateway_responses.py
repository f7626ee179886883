"""The Responses API before the unmodified OpenAI SDK: a conversation that goes on is one branch of what was sampled."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError

from environments.types import PlayedRollout
from tests.environments.speaking import END, TOOL, call, check_recorded, run, speaking
from trainers.model.tiny_tools import tool_tokenizer

pytestmark = pytest.mark.slow  # imports transformers, and trains a tokenizer

ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
LOOP = [
    f"<think>\nI add.\n</think>\n\nLet me see.\n{call(1, 2)}",
    f"<think>\nTwice.\n</think>\n\n{call(3, 4).removesuffix(END)}\n{call(5, 6)}",
    f"<think>\nDone.\n</think>\n\nIt is 3.{END}",
    f"You are welcome.{END}",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tools")
    tool_tokenizer().save_pretrained(made)
    return made


async def _whole(client: AsyncOpenAI, **asked: Any) -> Any:
    return await client.responses.create(**asked)


async def _streamed(client: AsyncOpenAI, **asked: Any) -> Any:
    async with client.responses.stream(**asked) as stream:
        said = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
        final = await stream.get_final_response()
    assert final.output_text == said
    return final


@pytest.mark.parametrize("respond", [_whole, _streamed])
def test_a_loop_of_tools_over_four_turns_is_one_branch(directory: Path, respond: Callable[..., Awaitable[Any]]) -> None:
    async def play() -> None:
        async with speaking(directory, LOOP) as (session, address, policy):
            async with AsyncOpenAI(base_url=address.base_url, api_key=address.api_key, max_retries=0) as client:
                items: list[Any] = [{"role": "user", "content": "1 + 2?"}]
                kinds = []
                for _ in LOOP:
                    answer = await respond(client, model="any", instructions="Be brief.", input=items, tools=[ADD])
                    assert answer.status == "completed"
                    assert answer.usage.output_tokens == len(policy.log[-1][1].token_ids)
                    kinds.append([item.type for item in answer.output])
                    items += [item.model_dump(exclude_none=True) for item in answer.output]
                    calls = [item for item in answer.output if item.type == "function_call"]
                    items += [
                        {"type": "function_call_output", "call_id": each.call_id, "output": "3"} for each in calls
                    ] or [{"role": "user", "content": "Thanks."}]
                assert answer.output_text == "You are welcome."
            assert kinds == [
                ["reasoning", "message", "function_call"],
                ["reasoning", "function_call", "function_call"],
                ["reasoning", "message"],
                ["message"],
            ]
            rollout = session.end()
            check_recorded(rollout, policy.log)
            assert rollout.tools == [TOOL]
            assert [message.role for message in rollout.messages] == [
                *("system", "user", "assistant", "tool", "assistant", "tool", "tool", "assistant", "user", "assistant")
            ]
            assert rollout.messages[2].reasoning_content == "I add."

    run(play())


def with_sdk(
    directory: Path, act: Callable[[AsyncOpenAI], Awaitable[Any]], replies: list[str], **sampling: Any
) -> PlayedRollout:
    async def play() -> PlayedRollout:
        async with speaking(directory, replies, **sampling) as (session, address, _):
            async with AsyncOpenAI(base_url=address.base_url, api_key=address.api_key, max_retries=0) as client:
                await act(client)
            return session.end()

    found: PlayedRollout = run(play())
    return found


def test_reasoning_that_a_client_leaves_out_and_replies_in_a_row_make_no_branch(directory: Path) -> None:
    """Two messages of the assistant that follow each other are two replies, not one."""

    async def act(client: AsyncOpenAI) -> None:
        items: list[Any] = [{"role": "user", "content": "1 + 2?"}]
        for _ in range(2):
            answer = await client.responses.create(model="any", input=items)
            items += [{"role": "assistant", "content": answer.output_text}, {"role": "system", "content": "Go on."}]
        before = [{"role": "assistant", "content": "Earlier."}, {"role": "assistant", "content": "Later."}]
        await client.responses.create(model="any", input=[*items[:1], *before, *items[:1]])  # type: ignore[list-item]

    rollout = with_sdk(directory, act, [f"<think>\nHm.\n</think>\n\nOne.{END}", f"Two.{END}", f"Three.{END}"])
    assert len(rollout.branch_lengths) == 2
    assert [message.text for message in rollout.earlier_branches[0]] == ["1 + 2?", "One.", "Go on.", "Two."]
    assert [message.text for message in rollout.messages] == ["1 + 2?", "Earlier.", "Later.", "1 + 2?", "Three."]


def test_a_reply_that_was_cut_is_incomplete_and_goes_on(directory: Path) -> None:
    async def act(client: AsyncOpenAI) -> None:
        items: list[Any] = [{"role": "user", "content": "1 + 2?"}]
        answer = await client.responses.create(model="any", input=items, max_output_tokens=3)
        assert (answer.status, answer.usage and answer.usage.output_tokens) == ("incomplete", 3)
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        items += [*answer.output, {"role": "user", "content": [{"type": "input_text", "text": "Go on."}]}]
        stream = await client.responses.create(model="any", input=items, max_output_tokens=3, stream=True)
        assert [event.type async for event in stream][-1] == "response.incomplete"

    assert with_sdk(directory, act, ["One and two and three"] * 2).branch_lengths == []


def test_what_is_not_understood_is_refused_by_name(directory: Path) -> None:
    async def act(client: AsyncOpenAI) -> None:
        asked: Any = {"model": "any", "input": "1 + 2?"}
        for wrong, words in (
            ({"previous_response_id": "resp_1"}, "send the whole conversation as input"),
            ({"background": True}, "background is not understood: wait for the answer"),
            ({"tools": [{"type": "web_search"}]}, "'web_search' is not understood"),
            ({"max_output_tokens": 0}, "max_output_tokens must be"),
            ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference' is not understood"),
            ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "'input_image' is not understood"),
            ({"input": []}, "no messages"),
        ):
            with pytest.raises(BadRequestError, match=words):
                await client.responses.create(**asked | wrong)
        with pytest.raises(BadRequestError) as full:
            await client.responses.create(model="any", input="x" * 400)
        assert full.value.code == "context_length_exceeded"
        with pytest.raises(BadRequestError, match="leave no room"):
            async for _ in await client.responses.create(model="any", input="x" * 400, stream=True):
                pass
        with pytest.raises(APIStatusError) as missing:
            await client.responses.retrieve("resp_1")
        assert missing.value.status_code in {404, 405}

    assert with_sdk(directory, act, [], max_total_tokens=100).token_ids == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": [7]},
        {"input": [{"type": ["message"]}]},
        {"input": [{"role": "user", "content": [7]}]},
        {"input": [{"role": 7, "content": "x"}]},
        {"input": [{"type": "function_call", "name": None}]},
        {"input": [{"type": "reasoning", "content": 7}]},
        {"input": [{"type": "function_call_output", "output": 7}]},
        {"input": "x", "tools": [7]},
        {},
    ],
)
def test_what_is_no_request_is_refused(directory: Path, wrong: dict[str, Any]) -> None:
    async def play() -> None:
        async with speaking(directory, []) as (_, address, _), httpx.AsyncClient() as http:
            answer = await http.post(f"{address.base_url}/responses", json=wrong)
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")

    run(play())
