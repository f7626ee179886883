"""A replica that speaks: it answers as vLLM does, calls tools, and writes down what it sampled before anybody hears it.

    python -m tests.chaos.agent_engine SOCKET MODEL

`MODEL` has the tokenizer; the log is in the directory for caches, which outlives its replica. A question "a + b" is
answered with one call of `add` or more and then with a number, now and then a wrong one. The log is append-only, one
write(2) a line, so the process may be killed at any instant. No two replies have the same logprobs: by them a rollout
in the store is found in the log.
"""

import asyncio
import json
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec
import numpy as np

from environments.chat.rendered import RenderedChat
from environments.chat.tokenizer import ChatTokenizer
from environments.policy import LOADING_LABEL
from environments.types import Message
from tests.workers.stub_server import StubReplica, _Handler

FAMILY = "qwen3"
END = "<|im_end|>"
SLOWEST_S = 0.25
"""A reply takes up to this."""
WRONG = 0.2
"""The share of calls and sums with a mistake."""
MOST_CALLS = 3
_QUESTION = re.compile(r"<\|im_start\|>user\n(\d+) \+ (\d+)<\|im_end\|>")
_TOLD = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_GRAIN = 2**20
"""Logprobs are multiples of its inverse: 32 bits hold them exactly."""


class Sample(msgspec.Struct, frozen=True):
    """One reply, as its engine knows it."""

    prompt: list[int]
    token_ids: list[int]
    logprobs: list[float]

    @property
    def mark(self) -> bytes:
        """What names it: its logprobs as the store has them."""
        return np.asarray(self.logprobs, "<f4").tobytes()


class Spoken(NamedTuple):
    """A reply before it is cut to what was asked for."""

    text: str
    is_answer: bool
    """To a question; a probe is none, and not worth a line."""


def sampled_in(directory: Path) -> Iterator[Sample]:
    """Whatever the engines sampled that log to a directory; a torn last line was never answered."""
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                yield msgspec.json.decode(line, type=Sample)
            except msgspec.DecodeError:
                continue


class SpeakingReplica(StubReplica):
    """The engine, with vLLM's other routes from its parent."""

    def __init__(self, path: str, model: Path) -> None:
        super().__init__(path)
        self.RequestHandlerClass = _SpeakingHandler
        self.dice = random.SystemRandom()  # no two engines of a slot say the same
        self._tokenizer = ChatTokenizer(model)
        self.end = self._tokenizer.eos_token_id
        self._chat = RenderedChat(self._tokenizer, FAMILY)
        directory = Path(os.environ["VLLM_CACHE_ROOT"])
        directory.mkdir(exist_ok=True)
        log = directory / f"sampled-{os.urandom(8).hex()}.jsonl"
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def render(self, body: dict[str, Any]) -> list[int]:
        """The prompt of a conversation."""
        messages = msgspec.convert(body["messages"], list[Message])
        return asyncio.run(self._chat.render(messages, body.get("tools", [])))

    def sample(self, prompt: list[int], most_tokens: int) -> tuple[Sample, str]:
        """A reply, already in the log, and its text."""
        spoken = self._spoken(self._tokenizer.decode(prompt))
        token_ids = self._tokenizer.encode(spoken.text)[:most_tokens]
        logprobs = [-self.dice.randrange(1, 4 * _GRAIN) / _GRAIN for _ in token_ids]
        sample = Sample(prompt, token_ids, logprobs)
        if spoken.is_answer:
            os.write(self._log, msgspec.json.encode(sample) + b"\n")
        return sample, self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def _spoken(self, conversation: str) -> Spoken:
        asked = list(_QUESTION.finditer(conversation))
        if not asked:
            return Spoken(f"?{END}", is_answer=False)
        a, b = (int(number) for number in asked[-1].groups())
        told = _TOLD.findall(conversation, asked[-1].end())
        slip = int(self.dice.random() < WRONG)
        if not told or (len(told) < MOST_CALLS and self.dice.random() < WRONG):
            arguments = json.dumps({"b": b + slip, "a": a})  # not in the order in which a renderer would write them
            return Spoken(f'<tool_call>\n{{"name":"add","arguments":{arguments}}}\n</tool_call>{END}', is_answer=True)
        return Spoken(f"{int(told[-1]) + slip}{END}", is_answer=True)


class _SpeakingHandler(_Handler):
    def do_POST(self) -> None:
        if urlsplit(self.path).path != "/v1/chat/completions/render":
            return super().do_POST()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return self._answer({"token_ids": cast(SpeakingReplica, self.server).render(body)})

    def _generate(self, stub: Any, body: dict[str, Any]) -> None:
        wanted = body["sampling_params"]
        if stub.ending.wait(stub.dice.uniform(0.0, SLOWEST_S)):
            return
        # The label changes only while generation stands still.
        while (label := stub.label) == LOADING_LABEL or stub.paused:
            if stub.ending.wait(0.02):
                return
        choices = []
        for _ in range(wanted.get("n", 1)):
            sample, text = stub.sample(body["token_ids"], wanted["max_tokens"])
            is_whole = sample.token_ids[-1] == stub.end
            choices.append(
                {
                    "token_ids": sample.token_ids,
                    "text": text,
                    "finish_reason": "stop" if is_whole else "length",
                    "logprobs": {"content": [{"logprob": logprob} for logprob in sample.logprobs]},
                    "weight_versions": [{"version": label}],
                }
            )
        self._answer({"choices": choices})


if __name__ == "__main__":
    SpeakingReplica(sys.argv[1], Path(sys.argv[2])).serve_forever()
