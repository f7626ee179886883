"""What an endpoint answers is data, whoever it is: in time, in bounds, and never with the key."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from environments.config import SamplingParams
from environments.endpoints import client as clients
from environments.endpoints.address import ChatEndpoint
from environments.endpoints.client import EndpointClient
from environments.errors import ConversationTooLong, EndpointRefused, EndpointUnavailable, UnreadableAnswer
from environments.types import ChatAnswer, ErrorKind, FunctionCall, Message, ToolCall
from tests.chat_server import ChatServer, Reply, completion, serving

KEY = "sk-canary-0123456789"
HELLO = [Message(role="user", content="hello")]


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_FIRST_PAUSE_S", 0.01)


def ask(
    server: ChatServer, *, times: int = 1, timeout_s: float = 20.0, key: str = KEY, **given: Any
) -> list[ChatAnswer]:
    """So many answers, asked for at the same time."""

    async def asked() -> list[ChatAnswer]:
        endpoint = ChatEndpoint(
            name="judge", base_url=server.base_url, model="judge-1", max_in_flight=2, timeout_s=timeout_s
        )
        client = EndpointClient(endpoint, key)
        try:
            sampling = SamplingParams(temperature=0.5, max_tokens=9)
            return await asyncio.gather(*(client.chat(HELLO, sampling=sampling, **given) for _ in range(times)))
        finally:
            await client.aclose()

    return asyncio.run(asked())


def test_a_reply_comes_with_what_it_cost() -> None:
    with serving(lambda body: "good day") as server:
        (answer,) = ask(server, seed=3)
    assert answer.message == Message(role="assistant", content="good day")
    assert (answer.finish_reason, answer.prompt_tokens, answer.completion_tokens) == ("stop", 7, 3)
    (body,) = server.asked
    assert body == {
        "model": "judge-1",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 9,
        "temperature": 0.5,
        "seed": 3,
    }
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_tools_are_offered_and_calls_come_back() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    with serving(lambda body: completion(None, tool_calls=[call])) as server:
        (answer,) = ask(server, tools=[tool])
    assert server.asked[0]["tools"] == [tool]
    assert "tool_choice" not in server.asked[0]
    assert answer.message.tool_calls == [ToolCall("c", FunctionCall("add", "{}"))]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_come_along_by_either_name_that_servers_have_for_them(name: str) -> None:
    replies = iter([completion("4", **{name: "2+2"}), completion(None, **{name: "2+"})])
    with serving(lambda body: next(replies)) as server:
        (whole,), (cut,) = ask(server), ask(server)
    assert whole.message == Message("assistant", "4", reasoning_content="2+2")
    assert (cut.message.text, cut.message.reasoning_content) == ("", "2+")


def refusal(param: str) -> Reply:
    return 400, json.dumps({"error": {"message": f"no {param} here", "param": param}}).encode()


def ask_in_turn(server: ChatServer, times: int) -> list[ChatAnswer | EndpointRefused]:
    """So many answers or refusals of one client, asked for one after the other."""

    async def asked() -> list[ChatAnswer | EndpointRefused]:
        client = EndpointClient(ChatEndpoint(name="judge", base_url=server.base_url, model="m"))
        found: list[ChatAnswer | EndpointRefused] = []
        for _ in range(times):
            try:
                found.append(await client.chat(HELLO, sampling=SamplingParams(temperature=0.0, max_tokens=9)))
            except EndpointRefused as error:
                found.append(error)
        await client.aclose()
        return found

    return asyncio.run(asked())


def test_what_takes_neither_max_tokens_nor_a_temperature_is_asked_without_and_from_then_on() -> None:
    def reply(body: dict[str, Any]) -> Reply:
        return next((refusal(name) for name in ("max_tokens", "temperature") if name in body), "yes")

    with serving(reply) as server:
        first, second = ask_in_turn(server, 2)
    assert [each.message.text for each in (first, second) if isinstance(each, ChatAnswer)] == ["yes", "yes"]
    limits = [{name: body[name] for name in body if name not in ("model", "messages")} for body in server.asked]
    assert limits == [
        {"max_tokens": 9, "temperature": 0.0},
        {"max_completion_tokens": 9, "temperature": 0.0},
        {"max_completion_tokens": 9},
        {"max_completion_tokens": 9},
    ]


def test_who_goes_on_refusing_is_believed_and_asked_as_before_the_next_time() -> None:
    replies = iter([refusal("max_tokens"), refusal("max_tokens"), "yes"])
    with serving(lambda body: next(replies)) as server:
        first, second = ask_in_turn(server, 2)
    assert isinstance(first, EndpointRefused)
    assert str(first) == "Endpoint judge answered 400: no max_tokens here"
    assert isinstance(second, ChatAnswer)
    assert ["max_tokens" in body for body in server.asked] == [True, False, True]


def test_no_more_requests_than_it_takes_are_there_at_a_time() -> None:
    with serving(lambda body: 0.05) as server:
        assert len(ask(server, times=6)) == 6
    assert server.most_at_a_time == 2


def test_who_is_overloaded_is_asked_again() -> None:
    statuses = iter([429, 503])
    with serving(lambda body: next(statuses, "at last")) as server:
        (answer,) = ask(server)
    assert answer.message.text == "at last"
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (lambda body: 302, EndpointRefused, "answered 302. Redirects are not followed"),
        (lambda body: 401, EndpointRefused, "answered 401: status 401"),
        (lambda body: 500, EndpointUnavailable, "answered 500: status 500"),
        (lambda body: 1.5, EndpointUnavailable, "no answer within 0.2 s"),
        (lambda body: b"x" * 3_000_000, UnreadableAnswer, "more bytes"),
        (lambda body: b"<html>", UnreadableAnswer, "no chat completion"),
        (lambda body: b"", UnreadableAnswer, "no chat completion"),
        (lambda body: b"[" * 200_000, UnreadableAnswer, "no chat completion"),
        (lambda body: {"choices": []}, UnreadableAnswer, "no chat completion"),
        (lambda body: {"choices": [{"message": {"content": ["a", 3]}}]}, UnreadableAnswer, "no chat completion"),
        (lambda body: b'{"choices": [{"message": {"content": "\\ud800"}}]}', UnreadableAnswer, "no chat completion"),
    ],
)
def test_whatever_else_it_does_is_an_error_that_says_so(
    reply: Callable[[dict[str, Any]], Reply], error: type[Exception], words: str
) -> None:
    with serving(reply) as server, pytest.raises(error, match=words.replace(".", r"\.")) as raised:
        ask(server, timeout_s=0.2)
    assert str(raised.value).startswith("Endpoint judge ")
    assert raised.value.kind is ErrorKind.TOOL  # type: ignore[attr-defined]
    assert "127.0.0.1" not in str(raised.value), "where it is asked is nobody's business"
    assert all(path == "/v1/chat/completions" for path in server.paths), "a redirect was followed"


@pytest.mark.parametrize(
    "error",
    [
        {"message": "no", "code": "context_length_exceeded"},
        {"message": "This model's maximum context length is 8 tokens.", "param": "input_tokens", "code": 400},
    ],
)
def test_a_conversation_that_is_too_long_for_it_is_told_apart(error: dict[str, Any]) -> None:
    with (
        serving(lambda body: (400, json.dumps({"error": error}).encode())) as server,
        pytest.raises(ConversationTooLong),
    ):
        ask(server)


@pytest.mark.parametrize("tokens", [-5, 10**18, 2**31])
def test_a_cost_that_cannot_be_is_bounded(tokens: int) -> None:
    usage = {"prompt_tokens": tokens, "completion_tokens": tokens}
    with serving(lambda body: completion("x") | {"usage": usage}) as server:
        (answer,) = ask(server)
    assert answer.prompt_tokens == answer.completion_tokens == (0 if tokens < 0 else 2**31 - 1)


def test_nobody_there_is_said_without_the_address() -> None:
    with serving(lambda body: "") as server:
        pass
    with pytest.raises(EndpointUnavailable, match=r"^Endpoint judge cannot be reached \(\w+\)\.$"):
        ask(server)


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_server_that_echoes_the_key_puts_it_nowhere(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
    body = json.dumps(completion(f"you said {KEY} and ESCAPED")).replace("ESCAPED", escaped)

    def reply(asked: dict[str, Any]) -> Reply:
        return body.encode() if status == 200 else {"error": {"message": "x" * 290 + KEY}}

    with serving(reply) as server:
        server_reply = server.reply
        server.reply = lambda asked: server_reply(asked) if status == 200 else status
        if status == 200:
            (answer,) = ask(server)
            assert answer.message.text == "you said [key] and [key]"
        else:
            with pytest.raises((EndpointRefused, EndpointUnavailable)) as raised:
                ask(server)
            assert KEY[:6] not in str(raised.value)
    assert KEY not in caplog.text


@pytest.mark.parametrize("key", ["test", "content"])
def test_a_key_too_short_to_be_a_secret_changes_no_word_of_a_reply(key: str) -> None:
    with serving(lambda body: "import pytest  # of the content") as server:
        (answer,) = ask(server, key=key)
    assert answer.message.text == "import pytest  # of the content"
    assert server.headers[0]["Authorization"] == f"Bearer {key}"
