"""The policy client refuses every answer that could not be trained on. A real vLLM gives none of these on purpose."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from environments.config import SamplingParams, Stops
from environments.errors import (
    ContextFull,
    EpisodeError,
    InvalidAnswer,
    PolicyRefused,
    PolicyUnavailable,
    UnfollowableTurn,
)
from environments.policy import Completion, OpenAIPolicy
from environments.types import FunctionCall, Message, ToolCall
from tests import http_server

SAMPLING = SamplingParams(max_tokens=4)
Answer = Callable[[str, dict[str, Any]], tuple[int, bytes]]


class Server:
    """Answers every request with `answer(path, body)`."""

    def __init__(self) -> None:
        self.answer: Answer = lambda path, body: (404, b"")
        self.asked: list[tuple[str, str | None]] = []
        server = self

        class Handler(http_server.Handler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append((self.path, self.headers["Authorization"]))
                self.answer(*server.answer(self.path, body))

        self.http = http_server.Server(("127.0.0.1", 0), Handler)
        self.url = f"{self.http.url}/v1"


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    with http_server.running(found.http):
        yield found


def choice(**changes: object) -> dict[str, object]:
    return {
        "token_ids": [5, 6],
        "text": "ab",
        "finish_reason": "stop",
        "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1.5}]},
        "weight_versions": [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}],
    } | changes


def logprobs(*values: float | None) -> dict[str, object]:
    return {"content": [{"logprob": value} for value in values]}


def sample(server: Server, choices: object, n: int = 1) -> list[Completion]:
    server.answer = lambda path, body: (200, json.dumps({"choices": choices}).encode())

    async def ask() -> list[Completion]:
        async with OpenAIPolicy(server.url, "policy", api_key="key") as policy:
            return await policy.sample([1, 2], n, SAMPLING)

    return asyncio.run(ask())


def test_tokens_logprobs_and_the_versions_that_sampled_them_come_back(server: Server) -> None:
    (completion,) = sample(server, [choice()])
    assert completion == Completion(
        token_ids=[5, 6],
        logprobs=[-0.5, -1.5],
        text="ab",
        finish_reason="stop",
        first_policy_version=3,
        last_policy_version=4,
    )
    assert server.asked == [("/inference/v1/generate", "Bearer key")]


def test_a_clients_stops_are_asked_for_and_further_ends_of_turns_are_not_taken_for_them(server: Server) -> None:
    asked = []
    stops = Stops(strings=("x",), token_ids=(9,))

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append(body["sampling_params"])
        return 200, json.dumps({"choices": [choice(stop_reason=reason) for reason in ("x", 9, 6, None)]}).encode()

    async def ask() -> list[Completion]:
        async with OpenAIPolicy(server.url, "policy") as policy:
            return await policy.sample([1, 2], 4, SamplingParams(max_tokens=4, stops=stops, ends=(6, 9)))

    server.answer = answer
    assert [each.stopped_by for each in asyncio.run(ask())] == ["x", 9, None, None]
    assert (asked[0]["stop"], asked[0]["stop_token_ids"]) == (["x"], [9, 6])


def refusing(server: Server, limit: Callable[[dict[str, Any]], int]) -> list[int]:
    """As vLLM: more replies than its limit are refused. How many each request asks for."""
    asked: list[int] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        wanted = body["sampling_params"]
        asked.append(wanted["n"])
        if wanted["n"] > limit(wanted):
            return 400, b'{"error": {"message": "n is too large"}}'
        return 200, json.dumps({"choices": [choice()] * wanted["n"]}).encode()

    server.answer = answer
    return asked


def test_a_server_that_is_greedy_for_one_reply_at_a_time_gives_as_many_as_are_wanted(server: Server) -> None:
    asked = refusing(server, lambda wanted: 1 if wanted["temperature"] == 0 else 1_000)

    async def ask(temperature: float) -> int:
        async with OpenAIPolicy(server.url, "policy") as policy:
            return len(await policy.sample([1, 2], 3, SamplingParams(max_tokens=4, temperature=temperature)))

    assert [asyncio.run(ask(temperature)) for temperature in (0.0, 1.0)] == [3, 3]
    assert asked == [1, 1, 1, 3]


@pytest.mark.parametrize(("known", "limit", "n", "parts"), [(4, 4, 10, [2, 4, 4]), (0, 64, 130, [2, 64, 64])])
def test_no_request_asks_for_more_replies_than_a_server_samples_at_a_time(
    server: Server, known: int, limit: int, n: int, parts: list[int]
) -> None:
    asked = refusing(server, lambda _: limit)

    async def ask() -> int:
        async with OpenAIPolicy(server.url, "policy", max_num_seqs=known) as policy:
            return len(await policy.sample([1, 2], n, SAMPLING))

    assert (asyncio.run(ask()), sorted(asked)) == (n, parts)


def test_where_one_of_several_requests_fails_nobody_waits_for_the_others(server: Server) -> None:
    release, asked = threading.Event(), []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append(path)
        if len(asked) == 1:
            return 500, b"died"
        release.wait(30)
        return 200, json.dumps({"choices": [choice()]}).encode()

    async def ask() -> None:
        async with OpenAIPolicy(server.url, "policy", timeout_s=20) as policy:
            await policy.sample([1, 2], 3, SamplingParams(max_tokens=4, temperature=0))

    server.answer = answer
    try:
        with pytest.raises(PolicyUnavailable, match="died"):
            asyncio.run(asyncio.wait_for(ask(), 15))
    finally:
        release.set()


@pytest.mark.parametrize("spans", [None, [], [{"version": "default", "start": 0, "end": 2}]])
def test_a_server_that_was_never_labelled_gives_no_versions(server: Server, spans: object) -> None:
    (completion,) = sample(server, [choice(weight_versions=spans)])
    assert (completion.first_policy_version, completion.last_policy_version) == (None, None)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ([], "Asked for 1 replies, got 0"),
        ([choice(), choice()], "got 2"),
        ([choice(token_ids=[])], "0 tokens came with 2 logprobs"),
        ([choice(token_ids=[5])], "1 tokens came with 2 logprobs"),
        ([choice(token_ids=[5, 6, 7, 8, 9], logprobs=logprobs(*[-1.0] * 5))], "4 were allowed"),
        ([choice(token_ids=[5, -6])], "outside"),
        ([choice(token_ids=[5, 2**31])], "outside"),
        ([choice(token_ids=[5, 6.5])], "Expected `int`"),
        ([choice(token_ids=None)], "Expected `array`"),
        ([choice(logprobs=None)], "with token ids and logprobs"),
        ([choice(logprobs=logprobs(-0.5, None))], "Expected `float`"),
        ([choice(logprobs=logprobs(-0.5, float("nan")))], "not a completion"),
        ([choice(logprobs=logprobs(-0.5, -9999.0))], "position 1 is -9999.0"),
        ([choice(logprobs=logprobs(0.2, -1.0))], "position 0 is 0.2"),
        ([choice(finish_reason="abort")], "'abort'"),
        ([choice(finish_reason=None)], "Expected `str`"),
        ([choice(weight_versions=[{"version": "3"}, {"version": "loading"}])], "weights were being replaced"),
        ("text", "Expected `array`"),
    ],
)
def test_an_answer_that_could_not_be_trained_on_is_refused(server: Server, choices: object, words: str) -> None:
    with pytest.raises(InvalidAnswer, match=words):
        sample(server, choices)


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (400, b'{"error": {"message": "prompt is too long"}}', PolicyRefused, "400: prompt is too long"),
        (401, b'{"error": "Unauthorized"}', PolicyRefused, "401: Unauthorized"),
        (404, b"<html>nginx</html>", PolicyRefused, "404: <html>nginx"),
        (422, b'{"detail": []}', PolicyRefused, "422"),
        (429, b"", PolicyUnavailable, "429"),
        (500, b'{"error": {"message": "EngineCore died"}}', PolicyUnavailable, "EngineCore died"),
        (503, b"\xff\xfe", PolicyUnavailable, "503"),
        (200, b"<html>", InvalidAnswer, "not a completion"),
    ],
)
def test_a_refusal_is_told_apart_from_an_outage(
    server: Server, status: int, body: bytes, error: type[EpisodeError], words: str
) -> None:
    async def ask() -> None:
        async with OpenAIPolicy(server.url, "policy") as policy:
            await policy.sample([1], 1, SAMPLING)

    server.answer = lambda path, request: (status, body)
    with pytest.raises(error, match=words):
        asyncio.run(ask())


def test_a_conversation_that_the_server_finds_too_long_to_render_fills_the_context(server: Server) -> None:
    async def ask() -> None:
        async with OpenAIPolicy(server.url, "policy") as policy:
            await policy.render([Message("user", "far too long")])

    server.answer = lambda path, request: (400, b'{"error": {"message": "of 512 tokens", "param": "input_tokens"}}')
    with pytest.raises(ContextFull, match="of 512 tokens"):
        asyncio.run(ask())


def test_no_request_outlives_its_deadline(server: Server) -> None:
    release = threading.Event()

    def wait(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        release.wait(30)
        return 200, b""

    async def ask() -> None:
        async with OpenAIPolicy(server.url, "policy", timeout_s=0.1) as policy:
            await policy.sample([1], 1, SAMPLING)

    server.answer = wait
    try:
        with pytest.raises(PolicyUnavailable, match=r"within 0\.1 s"):
            asyncio.run(ask())
    finally:
        release.set()


START, END, EOS = 100, 101, 102


def render_with(template: Callable[[list[str], bool], list[int]]) -> Answer:
    """A server that renders: the template gets the roles, and whether a reply is asked for."""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        roles = [message["role"] for message in body["messages"]]
        return 200, json.dumps({"token_ids": template(roles, body["add_generation_prompt"])}).encode()

    return answer


def extend(server: Server, template: Callable[[list[str], bool], list[int]], token_ids: list[int]) -> list[int]:
    server.answer = render_with(template)

    async def ask() -> list[int]:
        messages = [Message("user", "q"), Message("assistant", "a")]
        async with OpenAIPolicy(server.url, "policy") as policy:
            return await policy.extend(token_ids, messages, [Message("user", "more")])

    return asyncio.run(ask())


def test_a_further_turn_keeps_the_sampled_tokens_whatever_the_template_makes_of_them(server: Server) -> None:
    """The template writes a reply as token 7, with a newline (10) after every turn; the policy had sampled 8, 9."""

    def template(roles: list[str], for_reply: bool) -> list[int]:
        turns = [token for role in roles for token in (START, 7 if role == "assistant" else 1, END, 10)]
        return turns + ([START, 2] if for_reply else [])

    sampled = [START, 1, END, 10, START, 2, 8, 9, END]
    assert extend(server, template, sampled) == [*sampled, 10, START, 1, END, 10, START, 2]


def test_a_template_that_strips_earlier_replies_is_followed_all_the_same(server: Server) -> None:
    """As templates do with reasoning: 55 is rendered in the last reply only."""

    def template(roles: list[str], for_reply: bool) -> list[int]:
        turns: list[int] = []
        for position, role in enumerate(roles):
            reasoning = [55] if role == "assistant" and position == len(roles) - 1 else []
            turns += [START, *reasoning, 1, END]
        return turns + ([START, 2] if for_reply else [])

    sampled = [START, 1, END, START, 2, 55, 8, END]
    assert extend(server, template, sampled) == [*sampled, START, 1, END, START, 2]


def test_a_reply_that_ends_on_a_token_the_template_does_not_know_is_not_followed(server: Server) -> None:
    def template(roles: list[str], for_reply: bool) -> list[int]:
        return [START, 1, END] * len(roles)

    with pytest.raises(UnfollowableTurn, match="token 102"):
        extend(server, template, [START, 1, END, START, 8, EOS])


def test_a_reply_that_ends_on_a_token_that_begins_the_text_and_closes_no_turn_is_not_followed(server: Server) -> None:
    """As of models whose BOS is their EOS, and which stop on it while the template closes turns with END."""

    def template(roles: list[str], for_reply: bool) -> list[int]:
        turns = [token for _ in roles for token in (START, 1, END)]
        return [EOS, *turns, *([START, 2] if for_reply else [])]

    with pytest.raises(UnfollowableTurn, match="token 102"):
        extend(server, template, [EOS, START, 1, END, START, 2, 8, EOS])
    closed = [EOS, START, 1, END, START, 2, 8, END]
    assert extend(server, template, closed) == [*closed, START, 1, END, START, 2]


def test_a_token_that_begins_the_text_and_closes_turns_too_is_followed(server: Server) -> None:
    def template(roles: list[str], for_reply: bool) -> list[int]:
        turns = [token for _ in roles for token in (START, 1, EOS)]
        return [EOS, *turns, *([START, 2] if for_reply else [])]

    sampled = [EOS, START, 1, EOS, START, 2, 8, EOS]
    assert extend(server, template, sampled) == [*sampled, START, 1, EOS, START, 2]


def test_a_prompt_is_rendered_with_the_tools_and_calls_of_its_conversation(server: Server) -> None:
    call = ToolCall("1", FunctionCall("add", "{}"))
    conversation = [
        Message("user", "hi"),
        Message("assistant", tool_calls=[call]),
        Message("tool", "3", tool_call_id="1"),
    ]
    tools = [{"type": "function", "function": {"name": "add"}}]
    asked: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append(body)
        return 200, b'{"token_ids": [1]}'

    async def render() -> list[int]:
        async with OpenAIPolicy(server.url, "m") as policy:
            return await policy.render(conversation, tools) + await policy.render(conversation[:1])

    server.answer = answer
    assert asyncio.run(render()) == [1, 1]
    assert asked[0]["tools"] == tools
    assert asked[0]["messages"][1:] == [
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": "{}"}, "type": "function"}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "1"},
    ]
    assert "tools" not in asked[1]
