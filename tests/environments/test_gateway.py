"""The gateway before real clients: whatever they speak, the record has what was sampled."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from openai import APIStatusError, AsyncOpenAI, AuthenticationError, BadRequestError

from environments.chat.template import TemplateChat
from environments.config import SamplingParams
from environments.env import SessionAddress
from environments.errors import PolicyRefused, PolicyUnavailable
from environments.fakes import ScriptedPolicy
from environments.gateway.local import LocalGateway
from environments.policy import Completion
from environments.session import Session
from environments.types import FunctionCall, Message, PlayedRollout, Problem, StopReason, ToolCall

pytestmark = pytest.mark.slow  # each serves at a port

PROBLEM = Problem(key="p", messages=[Message("user", "one?")])
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class Calling(TemplateChat):
    """A reply that begins with `add` is a call."""

    def parse(self, prompt_token_ids: list[int], completion: Completion, tools: Any) -> Message:
        name, _, arguments = completion.text.partition(" ")
        if name != "add":
            return Message("assistant", completion.text, reasoning_content="Hm." if tools else None)
        return Message("assistant", None, tool_calls=[ToolCall("call_1", FunctionCall(name, arguments))])


@asynccontextmanager
async def opened(policy: Any, **sampling: Any) -> AsyncIterator[tuple[Session, SessionAddress]]:
    gateway = LocalGateway()
    session = Session(
        PROBLEM, policy, Calling(policy), SamplingParams(**({"max_turns": 9} | sampling)), gateway=gateway
    )
    try:
        yield session, await session.address()
    finally:
        await gateway.aclose()


def with_sdk(
    act: Callable[[AsyncOpenAI], Awaitable[Any]], replies: list[str | Exception] | None = None, **sampling: Any
) -> PlayedRollout:
    """Let the OpenAI SDK play a session; return what it left."""

    async def run() -> PlayedRollout:
        async with opened(ScriptedPolicy(replies or ["fine"]), **sampling) as (session, address):
            async with AsyncOpenAI(base_url=address.base_url, api_key=address.api_key, max_retries=0) as client:
                await act(client)
            return session.end()

    return asyncio.run(run())


def test_the_openai_sdk_plays_a_loop_of_tools_and_leaves_one_branch() -> None:
    async def act(client: AsyncOpenAI) -> None:
        messages: list[Any] = [{"role": "user", "content": "one?"}]
        for result in ("3", None):
            answer = await client.chat.completions.create(
                model="any", messages=messages, tools=[TOOL], temperature=0.1, logprobs=True
            )
            [choice] = answer.choices
            assert answer.usage is not None
            assert answer.usage.completion_tokens == len(choice.logprobs.content)  # type: ignore[union-attr, arg-type]
            messages.append(choice.message)
            if result is None:
                assert (choice.finish_reason, choice.message.content) == ("stop", "three")
                assert choice.message.reasoning_content == "Hm."  # type: ignore[attr-defined]
                continue
            assert choice.finish_reason == "tool_calls"
            [call] = choice.message.tool_calls or []
            messages.append({"role": "tool", "content": result, "tool_call_id": call.id})

    rollout = with_sdk(act, ['add {"a": 1}', "three"])
    assert rollout.branch_lengths == []
    assert rollout.tools == [TOOL]
    assert [message.role for message in rollout.messages] == ["user", "assistant", "tool", "assistant"]
    assert sum(rollout.loss_mask) == len('add {"a": 1}') + len("three") + 2


def test_a_streamed_reply_is_the_same_as_a_whole_one() -> None:
    async def act(client: AsyncOpenAI) -> None:
        said, calls, usage = "", [], None
        stream = await client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "one?"}],
            tools=[TOOL],  # type: ignore[list-item]
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                said += choice.delta.content or ""
                calls += choice.delta.tool_calls or []
        assert (said, calls) == ("fine", [])
        assert usage is not None
        async with client.chat.completions.stream(
            model="any",
            messages=[{"role": "user", "content": "two?"}],
            tools=[TOOL],  # type: ignore[list-item]
        ) as events:
            final = await events.get_final_completion()
        [call] = final.choices[0].message.tool_calls or []
        assert (call.function.name, call.function.arguments) == ("add", "{}")

    assert len(with_sdk(act, ["fine", "add {}"]).branch_lengths) == 2


def test_parts_and_other_roles_are_understood_and_pictures_refused() -> None:
    async def act(client: AsyncOpenAI) -> None:
        parts: Any = [{"type": "text", "text": "one"}, {"type": "text", "text": "?"}]
        await client.chat.completions.create(
            model="any", messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
        )
        for messages in (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
            [{"role": "clown", "content": "x"}],
            [],
        ):
            with pytest.raises(BadRequestError) as refused:
                await client.chat.completions.create(model="any", messages=messages)  # type: ignore[arg-type]
            assert refused.value.code == "invalid_messages"

    rollout = with_sdk(act)
    assert [message.role for message in rollout.messages] == ["system", "user", "assistant"]
    assert rollout.messages[1].text == "one?"


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_say_what_happened_in_the_clients_own_form(stream: bool) -> None:
    async def act(client: AsyncOpenAI) -> None:
        asked: Any = {"model": "any", "messages": [{"role": "user", "content": "one?"}], "stream": stream}
        with pytest.raises(BadRequestError, match="n must lie in"):
            await client.chat.completions.create(**asked, n=1000)
        with pytest.raises(APIStatusError) as away:
            await client.chat.completions.create(**asked)
        assert (away.value.status_code, away.value.code) == (503, "policy_unavailable")
        with pytest.raises(BadRequestError) as refused:
            await client.chat.completions.create(**asked)
        assert refused.value.code == "policy_refused"
        with pytest.raises(BadRequestError) as long:
            await client.chat.completions.create(**asked | {"messages": [{"role": "user", "content": "x" * 200}]})
        assert long.value.code == "context_length_exceeded"
        fine = await client.chat.completions.create(**asked)
        assert not stream or [chunk async for chunk in fine]
        with pytest.raises(BadRequestError) as over:
            await client.chat.completions.create(**asked)
        assert over.value.code == "turns_exhausted"

    replies: list[str | Exception] = [PolicyUnavailable("away"), PolicyRefused("no"), "fine"]
    rollout = with_sdk(act, replies, max_turns=1, max_total_tokens=100)
    assert sum(rollout.loss_mask) == len("fine") + 1
    assert rollout.stop_reason is StopReason.TURNS


def test_a_key_opens_one_session_until_it_ends_and_nothing_else() -> None:
    async def run() -> None:
        async with opened(ScriptedPolicy(["fine"])) as (session, address):
            root = address.base_url.partition("/s/")[0]
            asked = {"messages": [{"role": "user", "content": "one?"}]}
            async with httpx.AsyncClient() as http:
                for headers in (
                    {"Authorization": f"Bearer {address.api_key}"},
                    {"X-Session-ID": address.api_key},
                    {"X-Session-ID": address.api_key, "Authorization": "Bearer sk-unused"},
                    {"X-Api-Key": address.api_key, "Authorization": "Bearer"},
                ):
                    assert (await http.post(f"{root}/v1/chat/completions", json=asked, headers=headers)).is_success
                for wrong in ("", "Bearer", "Bearer x", f"Basic {address.api_key}"):
                    answer = await http.post(
                        f"{root}/v1/chat/completions", json=asked, headers={"Authorization": wrong}
                    )
                    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unknown_session")
                assert (await http.get(f"{root}/health")).status_code == 200
                assert (await http.get(f"{root}/s/x/health")).status_code == 401
                assert (await http.get(f"{address.base_url}/models")).json()["data"][0]["id"] == "policy"
                session.end()
                assert (await http.post(f"{address.base_url}/chat/completions", json=asked)).status_code == 401
            with pytest.raises(AuthenticationError):
                await AsyncOpenAI(base_url=address.base_url, api_key="x").models.list()

    asyncio.run(run())


def test_tokens_go_in_and_come_out_as_vllm_and_atropos_have_them() -> None:
    async def run() -> PlayedRollout:
        async with opened(ScriptedPolicy(["ab"])) as (session, address), httpx.AsyncClient() as http:
            root = address.base_url.removesuffix("/v1")
            wanted = {"token_ids": [7, 8], "sampling_params": {"n": 2, "max_tokens": 9, "temperature": 0.1}}
            answer = (await http.post(f"{root}/inference/v1/generate", json=wanted)).json()
            first = answer["choices"][0]
            assert first["token_ids"] == [97, 98, 257]
            assert [entry["token"] for entry in first["logprobs"]["content"]] == [
                "token_id:97",
                "token_id:98",
                "token_id:257",
            ]
            prompt = {"prompt_token_ids": [7, 8, *first["token_ids"], 9]}
            told = (await http.post(f"{root}/generate", json={"prompt": prompt, "logprobs": 0, "n": 1})).json()
            assert [list(each[0]) for each in told["logprobs"][0]] == [["97"], ["98"], ["257"]]
            assert told["finish_reasons"] == ["stop"]
            nulls = {"prompt": [7], "max_tokens": 1, "n": None, "stream": None}
            text = (await http.post(f"{root}/v1/completions", json=nulls)).json()
            assert text["choices"][0]["text"] == "a"
            assert (await http.post(f"{root}/v1/completions", json={"prompt": "a"})).status_code == 400
            assert (await http.get(f"{root}/health")).status_code == 200
            return session.end()

    rollout = asyncio.run(run())
    assert len(rollout.branch_lengths) == 3
    assert rollout.token_ids[: rollout.branch_lengths[0]] == [7, 8, 97, 98, 257]


class Slow(ScriptedPolicy):
    """Replies when it is let, and remembers whether it was cancelled."""

    def __init__(self, reply: str | Exception = "fine") -> None:
        super().__init__([reply])
        self.asked_once, self.cancelled, self.may_go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
        self.asked_once.set()
        try:
            await self.may_go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return await super().sample(prompt_token_ids, n, sampling)


@pytest.mark.parametrize(("stream", "begun"), [(False, False), (True, False), (True, True)])
def test_a_client_that_hangs_up_ends_its_request_and_leaves_no_turn(
    monkeypatch: pytest.MonkeyPatch, stream: bool, begun: bool
) -> None:
    monkeypatch.setattr("environments.gateway.waiting.KEEP_ALIVE_S", 0.01 if begun else 60.0)

    async def run() -> None:
        policy = Slow()
        async with opened(policy) as (session, address):
            body = json.dumps({"messages": [{"role": "user", "content": "one?"}], "stream": stream}).encode()
            host, _, port = address.base_url.split("/")[2].partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            path = f"/s/{address.api_key}/v1/chat/completions"
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            async with asyncio.timeout(5):
                await policy.asked_once.wait()
                if begun:
                    await reader.readuntil(b"waiting for the policy")
                writer.close()
                await policy.cancelled.wait()
            assert len(session.turns) == 0
            assert session.in_flight == 0

    asyncio.run(run())


def test_an_error_of_a_stream_that_has_begun_is_an_event_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.gateway.waiting.KEEP_ALIVE_S", 0.01)

    async def run() -> None:
        policy = Slow(PolicyUnavailable("away"))
        async with opened(policy) as (_, address), httpx.AsyncClient() as http:
            asked = {"messages": [{"role": "user", "content": "one?"}], "stream": True}
            async with http.stream("POST", f"{address.base_url}/chat/completions", json=asked) as answer:
                assert answer.status_code == 200
                policy.may_go.set()
                told = (await answer.aread()).decode()
        assert told.startswith(": waiting for the policy\n\n")
        assert json.loads(told.partition("event: error\ndata: ")[2])["error"]["code"] == "policy_unavailable"

    asyncio.run(run())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"messages": 7}',
        b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": [7]}]}',
        b"\xff",
    ],
)
def test_what_is_no_request_is_refused_in_the_form_of_the_api(body: bytes) -> None:
    async def run() -> None:
        async with opened(ScriptedPolicy(["fine"])) as (_, address), httpx.AsyncClient() as http:
            for path in ("v1/chat/completions", "v1/completions", "inference/v1/generate", "generate"):
                answer = await http.post(f"{address.base_url.removesuffix('/v1')}/{path}", content=body)
                assert answer.status_code == 400
                assert answer.json()["error"]["code"] == "invalid_request"

    asyncio.run(run())


@pytest.mark.parametrize("value", ["a\0b", {"\0": 1}, 2**64, [[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]])
def test_tools_that_no_database_would_take_are_refused_before_anything_is_sampled(value: Any) -> None:
    async def run() -> None:
        async with opened(ScriptedPolicy(["fine"])) as (session, address), httpx.AsyncClient() as http:
            tools = [{"type": "function", "function": {"name": "f", "description": value}}]
            asked = {"messages": [{"role": "user", "content": "x"}], "tools": tools}
            answer = await http.post(f"{address.base_url}/chat/completions", json=asked)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
            assert not session.turns

    asyncio.run(run())


def test_thoughts_of_a_conversation_may_have_the_name_that_vllm_gives_them() -> None:
    async def act(client: AsyncOpenAI) -> None:
        thought = {"role": "assistant", "content": "1", "reasoning": "Hm."}
        messages: Any = [{"role": "user", "content": "one?"}, thought, {"role": "user", "content": "two?"}]
        await client.chat.completions.create(model="any", messages=messages)

    assert with_sdk(act).messages[1].reasoning_content == "Hm."


@pytest.mark.parametrize(
    ("path", "name"), [("chat/completions", "messages"), ("messages",) * 2, ("responses", "input")]
)
def test_what_a_session_has_no_room_for_is_refused_before_it_is_read(path: str, name: str) -> None:
    nobodies = json.dumps({name: [{"role": "nobody", "content": []}] * 101}).encode()

    async def run() -> None:
        async with opened(ScriptedPolicy(["fine"]), max_total_tokens=100) as (session, address):
            async with httpx.AsyncClient() as http:
                for body, code in ((b"x" * 40_000, "context_length_exceeded"), (nobodies, "context_length_exceeded")):
                    answer = await http.post(f"{address.base_url}/{path}", content=body)
                    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
            assert session.end().stop_reason is StopReason.LENGTH

    asyncio.run(run())


def test_a_body_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.gateway.app.MAX_BODY_BYTES", 1000)

    async def run() -> None:
        async with opened(ScriptedPolicy(["fine"])) as (_, address), httpx.AsyncClient() as http:
            answer = await http.post(f"{address.base_url}/chat/completions", content=b"x" * 2000)
            assert answer.status_code == 413

    asyncio.run(run())
