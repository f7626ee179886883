"""What the gateway does not understand is refused in words that name it, before anything is sampled."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import ResponseErrorEvent

from environments.errors import PolicyUnavailable
from environments.fakes import ScriptedPolicy
from tests.environments.test_gateway import TOOL, Slow, opened, with_sdk

pytestmark = pytest.mark.slow  # each serves at a port


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("v1/completions", {"prompt": [7]}),
        ("inference/v1/generate", {"token_ids": [7]}),
        ("generate", {"prompt": {"prompt_token_ids": [7]}}),
    ],
)
def test_a_stream_of_tokens_is_refused(path: str, asked: dict[str, Any]) -> None:
    async def run() -> None:
        async with opened(ScriptedPolicy(["fine"])) as (session, address), httpx.AsyncClient() as http:
            url = f"{address.base_url.removesuffix('/v1')}/{path}"
            answer = await http.post(url, json=asked | {"stream": True})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
            assert "stream is not understood here" in answer.json()["error"]["message"]
            assert not session.turns
            assert (await http.post(url, json=asked | {"stream": False})).is_success

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("generate", {"prompt": {"prompt_token_ids": [7]}, "prompt_logprobs": 1, "n": 1, "max_tokens": 1}),
        ("generate", {"prompt": {"prompt_token_ids": [7]}, "prompt_logprobs": 0}),
        ("inference/v1/generate", {"token_ids": [7], "sampling_params": {"prompt_logprobs": 1}}),
        ("v1/completions", {"prompt": [7], "prompt_logprobs": 1}),
        ("v1/chat/completions", {"messages": [{"role": "user", "content": "one?"}], "prompt_logprobs": 1}),
    ],
)
def test_logprobs_of_a_prompt_are_refused_and_nothing_of_it_is_sampled(path: str, asked: dict[str, Any]) -> None:
    """As Atropos' `get_logprobs` asks for: a turn that nobody wanted would train."""

    async def run() -> None:
        policy = ScriptedPolicy(["fine"])
        async with opened(policy) as (session, address), httpx.AsyncClient() as http:
            url = f"{address.base_url.removesuffix('/v1')}/{path}"
            answer = await http.post(url, json=asked)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_prompt_logprobs")
            assert "the policy says nothing about prompts" in answer.json()["error"]["message"]
            assert not session.turns
            assert not policy.asked
            nothing = {"prompt_logprobs": None}
            unasked = asked | ({"sampling_params": nothing} if "sampling_params" in asked else nothing)
            assert (await http.post(url, json=unasked)).is_success

    asyncio.run(run())


def test_a_reply_that_a_client_began_is_refused_and_a_last_message_of_the_assistant_is_a_reply_before() -> None:
    async def act(client: AsyncOpenAI) -> None:
        messages: list[Any] = [{"role": "user", "content": "one?"}, {"role": "assistant", "content": "On"}]
        with pytest.raises(BadRequestError, match="continue_final_message is not understood"):
            await client.chat.completions.create(
                model="any", messages=messages, extra_body={"continue_final_message": True}
            )
        await client.chat.completions.create(model="any", messages=messages)

    assert [message.text for message in with_sdk(act).messages] == ["one?", "On", "fine"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "'custom' is not understood: only functions are"),
        ({"tools": [TOOL, {"function": {"name": "f"}}]}, "None is not understood: only functions are"),
        ({"tools": [{"type": "function", "name": "f"}]}, "no function with a name"),
        ({"tools": [{"type": "function", "function": {"name": None}}]}, "no function with a name"),
        ({"functions": [{"name": "f"}]}, "functions is not understood: send them as tools"),
    ],
)
def test_tools_that_are_no_functions_are_refused_by_name(wrong: dict[str, Any], words: str) -> None:
    async def act(client: AsyncOpenAI) -> None:
        messages: Any = [{"role": "user", "content": "one?"}]
        with pytest.raises(BadRequestError, match=words):
            await client.chat.completions.create(model="any", messages=messages, extra_body=wrong)

    assert with_sdk(act).token_ids == []


def test_an_error_of_a_stream_of_responses_is_an_event_of_that_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.gateway.waiting.KEEP_ALIVE_S", 0.01)

    async def run() -> None:
        policy = Slow(PolicyUnavailable("away"))
        async with opened(policy) as (_, address), httpx.AsyncClient() as http:
            asked = {"input": "one?", "stream": True}
            async with http.stream("POST", f"{address.base_url}/responses", json=asked) as answer:
                policy.may_go.set()
                told = json.loads((await answer.aread()).decode().partition("event: error\ndata: ")[2])
        event = ResponseErrorEvent.model_validate(told, strict=True)
        assert (event.type, event.code, event.message) == ("error", "policy_unavailable", "away")
        assert told["error"]["code"] == "policy_unavailable"

    asyncio.run(run())


def test_what_is_not_served_is_refused_in_the_form_of_the_api_and_what_is_served_is_named() -> None:
    async def run() -> None:
        async with opened(ScriptedPolicy(["fine"])) as (_, address), httpx.AsyncClient() as http:
            missing = await http.post(f"{address.base_url}/embeddings", json={})
            wrong = await http.get(f"{address.base_url}/chat/completions")
            counted = await http.post(f"{address.base_url}/messages/count_tokens", json={})
        assert [answer.status_code for answer in (missing, wrong, counted)] == [404, 405, 404]
        assert (missing.json()["error"]["code"], wrong.headers["Allow"]) == ("unknown_route", "POST")
        assert "POST /v1/chat/completions, POST /v1/completions" in missing.json()["error"]["message"]
        assert address.api_key not in missing.text
        assert (counted.json()["type"], counted.json()["error"]["type"]) == ("error", "not_found_error")

    asyncio.run(run())
