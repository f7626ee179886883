"""A server that a run has in its hands: whatever it answers, whoever asks has an error in time, and memory left."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast
from urllib.parse import urlsplit

import pytest

from environments import servers
from environments.config import SamplingParams
from environments.errors import InvalidAnswer, PolicyUnavailable
from environments.policy import OpenAIPolicy
from tests import http_server
from tests.workers.stub_server import metrics
from tests.workers.test_lines import no_longer_hear
from workers.fleet.inference import EngineLoad, ReplicaRefused, ReplicaUnreachable, VllmAdmin

CHOICE = {
    "token_ids": [7],
    "text": "g",
    "finish_reason": "stop",
    "logprobs": {"content": [{"logprob": -0.5}]},
}
GOOD = json.dumps({"choices": [CHOICE]}).encode()
Write = Callable[[bytes], object]
SHORT_S, LONG_S = 0.3, 60.0


@contextmanager
def hostile(answer: Callable[[Write, threading.Event], None]) -> Iterator[str]:
    """A server whose every answer is written by `answer`, which gets an event that comes with the end."""
    ending = threading.Event()

    class Handler(http_server.Handler):
        def do_POST(self) -> None:
            self.close_connection = True
            self.rfile.read(int(self.headers.get("Content-Length") or 0))  # else closing resets the connection
            answer(self.wfile.write, ending)

        def do_GET(self) -> None:
            self.do_POST()

    with http_server.serving(Handler) as url:
        try:
            yield url
        finally:
            ending.set()


def head(length: int) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n".encode()


def trickling(write: Write, ending: threading.Event, start: bytes, rest: bytes) -> None:
    """A byte at a time, each long before a reader that waits for one gives up; at last the answer is whole."""
    write(start)
    for at in range(len(rest)):
        if ending.wait(SHORT_S / 10):
            return
        write(rest[at : at + 1])


def trickling_body(write: Write, ending: threading.Event) -> None:
    trickling(write, ending, head(len(GOOD)) + b"\r\n", GOOD)


def trickling_head(write: Write, ending: threading.Event) -> None:
    trickling(write, ending, head(len(GOOD)) + b"X: ", b"x" * 60 + b"\r\n\r\n" + GOOD)


def endless(write: Write, ending: threading.Event) -> None:
    """64 MiB, which is endless enough, before an answer that would be good."""
    write(head(64 * 2**20 + len(GOOD)) + b"\r\n")
    for _ in range(64):
        write(b" " * 2**20)
    write(GOOD)


def deep(write: Write, ending: threading.Event) -> None:
    body = b'{"choices": ' + b"[" * 200_000
    write(head(len(body)) + b"\r\n" + body)


def sample(url: str, patience_s: float) -> None:
    async def ask() -> None:
        async with OpenAIPolicy(f"{url}/v1", "policy", timeout_s=patience_s) as policy:
            await policy.sample([1], 1, SamplingParams(max_tokens=4))

    asyncio.run(ask())


@pytest.mark.parametrize("answer", [trickling_body, trickling_head])
def test_an_answer_that_trickles_is_over_at_the_deadline(answer: Callable[[Write, threading.Event], None]) -> None:
    with hostile(answer) as url, VllmAdmin(url) as admin:
        with pytest.raises(ReplicaUnreachable, match="TimeoutError"):
            admin.probe(SHORT_S)
        with pytest.raises(PolicyUnavailable, match="No answer"):
            sample(url, SHORT_S)


def test_a_server_whose_machine_has_vanished_is_lost_long_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_PROBE_S", 1)
    monkeypatch.setattr(servers, "_SILENT_S", 2)
    heard = threading.Event()

    def say_nothing(write: Write, ending: threading.Event) -> None:
        heard.set()
        ending.wait(LONG_S)

    async def ask(url: str) -> None:
        async with OpenAIPolicy(f"{url}/v1", "policy", timeout_s=10 * LONG_S) as policy, asyncio.timeout(LONG_S):
            asked = asyncio.create_task(policy.sample([1], 1, SamplingParams(max_tokens=4)))
            assert await asyncio.to_thread(heard.wait, LONG_S)
            no_longer_hear(("127.0.0.1", urlsplit(url).port or 0))
            await asked

    with hostile(say_nothing) as url, pytest.raises(PolicyUnavailable, match="ClientOSError"):
        asyncio.run(ask(url))


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    with hostile(endless) as url, VllmAdmin(url) as admin:
        with pytest.raises(ReplicaRefused, match="has more than 1048576 bytes"):
            admin.probe(LONG_S)
        with pytest.raises(InvalidAnswer, match="has more than"):
            sample(url, LONG_S)


def test_an_answer_that_is_nested_without_end_is_a_refusal() -> None:
    with hostile(deep) as url, VllmAdmin(url) as admin:
        with pytest.raises(ReplicaRefused, match="did not answer with JSON"):
            admin.probe(LONG_S)
        with pytest.raises(InvalidAnswer):
            sample(url, LONG_S)


@pytest.mark.parametrize(
    "label", ["9" * 5000, "9" * 30, "one", None, [[]]], ids=["5000 digits", "30", "a word", "none", "a list"]
)
def test_a_label_that_is_no_version_is_none(label: object) -> None:
    body = json.dumps({"weight_version": label}).encode()
    with hostile(lambda write, _: write(head(len(body)) + b"\r\n" + body)) as url, VllmAdmin(url) as admin:  # type: ignore[arg-type, return-value]
        assert admin.version() is None


def serving_metrics(text: str) -> Callable[[Write, threading.Event], None]:
    body = text.encode()
    return lambda write, _: cast(None, write(head(len(body)) + b"\r\n" + body))


def test_what_a_server_is_busy_with_is_read_out_of_its_metrics() -> None:
    second = metrics(running=1.0, waiting=0.0, share=0.5, tokens=1000.0).replace('engine="0"', 'engine="1"')
    text = metrics(running=3.0, waiting=2.0, share=0.25, tokens="1.2345e+06") + second
    with hostile(serving_metrics(text)) as url, VllmAdmin(url) as admin:
        assert admin.load(LONG_S) == EngineLoad(running=4, waiting=2, cache_share=0.375, tokens=1_235_500)


@pytest.mark.parametrize("said", ["NaN", "-1.0", "+Inf", "0x10", "1" * 30, "1.0.0", "1 2", ""])
def test_metrics_that_count_nothing_are_a_refusal(said: str) -> None:
    with (
        hostile(serving_metrics(metrics(running=said))) as url,
        VllmAdmin(url) as admin,
        pytest.raises(ReplicaRefused, match="does not say what the engine is busy with"),
    ):
        admin.load(LONG_S)


def test_metrics_that_cannot_be_are_as_much_as_can_be_stored() -> None:
    text = metrics(waiting="9e300", share="7.5", tokens="9e300")
    with hostile(serving_metrics(text)) as url, VllmAdmin(url) as admin:
        assert admin.load(LONG_S) == EngineLoad(running=0, waiting=2**31 - 1, cache_share=1.0, tokens=2**53)


def test_metrics_without_end_are_not_read_to_their_end() -> None:
    with (
        hostile(endless) as url,
        VllmAdmin(url) as admin,
        pytest.raises(ReplicaRefused, match="has more than 1048576 bytes"),
    ):
        admin.load(LONG_S)
