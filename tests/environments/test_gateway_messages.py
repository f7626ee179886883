"""The Messages API before the unmodified Anthropic SDK: a conversation that goes on is one branch, token by token."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic, AuthenticationError, BadRequestError

from environments.gateway.messages import _input
from environments.types import PlayedRollout
from tests.environments.speaking import END, call, check_recorded, run, speaking
from trainers.model.tiny_tools import tool_tokenizer

pytestmark = pytest.mark.slow  # imports transformers, and trains a tokenizer

ADD: Any = {"name": "add", "description": "Add.", "input_schema": {"type": "object"}}
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


async def _whole(client: AsyncAnthropic, **asked: Any) -> Any:
    return await client.messages.create(**asked)


async def _streamed(client: AsyncAnthropic, **asked: Any) -> Any:
    async with client.messages.stream(**asked) as stream:
        said = "".join([text async for text in stream.text_stream])
        final = await stream.get_final_message()
    assert "".join(block.text for block in final.content if block.type == "text") == said
    return final


@pytest.mark.parametrize("respond", [_whole, _streamed])
def test_a_loop_of_tools_over_four_turns_is_one_branch(directory: Path, respond: Callable[..., Awaitable[Any]]) -> None:
    async def play() -> None:
        async with speaking(directory, LOOP) as (session, address, policy):
            root = address.base_url.removesuffix("/v1")
            async with AsyncAnthropic(base_url=root, api_key=address.api_key, max_retries=0) as client:
                messages: list[Any] = [{"role": "user", "content": "1 + 2?"}]
                said = []
                for _ in LOOP:
                    answer = await respond(
                        client, model="any", max_tokens=400, system="Be brief.", messages=messages, tools=[ADD]
                    )
                    assert answer.usage.output_tokens == len(policy.log[-1][1].token_ids)
                    said.append((answer.stop_reason, [block.type for block in answer.content]))
                    calls = [block for block in answer.content if block.type == "tool_use"]
                    results = [{"type": "tool_result", "tool_use_id": each.id, "content": "3"} for each in calls]
                    messages += [
                        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
                        {"role": "user", "content": results or [{"type": "text", "text": "Thanks."}]},
                    ]
            assert said == [
                ("tool_use", ["thinking", "text", "tool_use"]),
                ("tool_use", ["thinking", "tool_use", "tool_use"]),
                ("end_turn", ["thinking", "text"]),
                ("end_turn", ["text"]),
            ]
            rollout = session.end()
            check_recorded(rollout, policy.log)
            assert rollout.tools[0]["function"] == {
                "name": "add",
                "description": "Add.",
                "parameters": {"type": "object"},
            }
            assert [message.role for message in rollout.messages] == [
                *("system", "user", "assistant", "tool", "assistant", "tool", "tool", "assistant", "user", "assistant")
            ]

    run(play())


def with_sdk(
    directory: Path, act: Callable[[AsyncAnthropic], Awaitable[Any]], replies: list[str], **sampling: Any
) -> PlayedRollout:
    async def play() -> PlayedRollout:
        async with speaking(directory, replies, **sampling) as (session, address, _):
            root = address.base_url.removesuffix("/v1")
            async with AsyncAnthropic(base_url=root, api_key=address.api_key, max_retries=0) as client:
                await act(client)
            return session.end()

    found: PlayedRollout = run(play())
    return found


def test_stop_sequences_and_budgets_end_a_reply_and_what_follows_goes_on(directory: Path) -> None:
    async def act(client: AsyncAnthropic) -> None:
        messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "1 + 2?"}]}]
        asked: Any = {"model": "any", "system": [{"type": "text", "text": "Be brief."}], "messages": messages}
        answer = await client.messages.create(**asked, max_tokens=400, stop_sequences=["\nObs"])
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "\nObs")
        assert answer.content[0].to_dict() == {"type": "text", "text": "I look."}
        messages += [{"role": "assistant", "content": "I look."}, {"role": "user", "content": "Nothing."}]
        answer = await client.messages.create(**asked, max_tokens=3)
        assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 3)
        messages += [answer.to_param(), {"role": "user", "content": "Go on."}]
        await client.messages.create(**asked, max_tokens=400)

    rollout = with_sdk(directory, act, [f"I look.\nObs: 7{END}", f"So it is three.{END}", f"Three.{END}"])
    assert rollout.branch_lengths == []


def test_arguments_come_as_they_were_sampled_and_what_is_no_object_as_text(directory: Path) -> None:
    """A number may be too long for any type; a family may hand over what is no JSON."""

    async def act(client: AsyncAnthropic) -> None:
        messages: list[Any] = [{"role": "user", "content": "1 + 2?"}]
        for _ in range(2):
            answer = await client.messages.create(model="any", max_tokens=400, messages=messages, tools=[ADD])
            [block] = answer.content
            assert block.type == "tool_use"
            assert block.input == {"a": 10**30, "b": 1.5e3}
            result: Any = {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "3"}]}
            messages += [answer.to_param(), {"role": "user", "content": [result]}]

    huge = f'<tool_call>{{"name": "add", "arguments": {{"a": 1{"0" * 30}, "b": 1.5e3}}}}</tool_call>{END}'
    assert with_sdk(directory, act, [huge, huge]).branch_lengths == []
    assert [bytes(_input(text)) for text in ('{"a": 1}', "[1]", "a=1")] == [b'{"a": 1}', b'"[1]"', b'"a=1"']


def test_refusals_are_in_the_form_of_the_api_and_name_what_is_not_understood(directory: Path) -> None:
    async def act(client: AsyncAnthropic) -> None:
        asked: Any = {"model": "any", "max_tokens": 5, "messages": [{"role": "user", "content": "1 + 2?"}]}
        image = {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}
        for wrong, words in (
            ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305' is not"),
            ({"messages": [image]}, "'image' is not understood"),
            ({"messages": []}, "no messages"),
            ({"messages": [*asked["messages"], {"role": "assistant", "content": "3, "}]}, "not gone on with"),
            ({"max_tokens": 0}, "max_tokens must be"),
            ({"stop_sequences": [""]}, "stop_sequences may be"),
            ({"stop_sequences": ["a", "b", "c", "d", "e"]}, "stop_sequences may be up to 4"),
            ({"messages": [{"role": "user", "content": "x" * 400}]}, "leave no room"),
        ):
            with pytest.raises(BadRequestError, match=words) as refused:
                await client.messages.create(**asked | wrong)
            assert refused.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
        with pytest.raises(BadRequestError, match="leave no room"):
            async for _ in await client.messages.create(
                model="any", max_tokens=5, messages=[{"role": "user", "content": "x" * 400}], stream=True
            ):
                pass
        root = str(client.base_url).partition("/s/")[0]
        with pytest.raises(AuthenticationError):
            await client.with_options(base_url=root, api_key="x").messages.create(**asked)
        answer = await client.with_options(base_url=root).messages.create(**asked)
        assert answer.content[0].to_dict()["text"] == "Three."

    with_sdk(directory, act, [f"Three.{END}"], max_total_tokens=100)


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [7]},
        {"messages": [{"role": "user", "content": [7]}]},
        {"messages": [{"role": "assistant", "content": [{"type": ["text"]}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": 7}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 7}]}]},
        {"messages": [{"role": "clown", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "a\0b"}]},
        {},
    ],
)
def test_what_is_no_request_is_refused(directory: Path, wrong: dict[str, Any]) -> None:
    async def play() -> None:
        async with speaking(directory, []) as (_, address, _), httpx.AsyncClient() as http:
            answer = await http.post(f"{address.base_url}/messages", json=wrong)
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")

    run(play())
