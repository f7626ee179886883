"""A gateway before a policy that says what it is told, in the tokens of a real chat format, as an engine gives them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from environments.chat.rendered import RenderedChat
from environments.chat.tokenizer import ChatTokenizer
from environments.config import SamplingParams
from environments.env import SessionAddress
from environments.fakes import ScriptedPolicy
from environments.gateway.local import LocalGateway
from environments.policy import Completion
from environments.session import Session
from environments.types import JsonObject, Message, PlayedRollout, Problem

END = "<|im_end|>"
TOOL: JsonObject = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
PROBLEM = Problem(key="p", messages=[Message("user", "1 + 2?")])


def call(a: int, b: int, name: str = "add") -> str:
    """A call in a spelling that no renderer writes: if it were rendered again, that would show."""
    return f'<tool_call>{{"arguments":{{"b":{b},"a":{a}}},"name":"{name}"}}</tool_call>{END}'


class Speaking(ScriptedPolicy):
    """Says these texts one by one, and keeps what it was given and what it sampled."""

    def __init__(self, tokenizer: ChatTokenizer, replies: Sequence[str]) -> None:
        super().__init__([])
        self._tokenizer = tokenizer
        self._left = list(replies)
        self.log: list[tuple[list[int], Completion]] = []

    async def sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
        completions = [self._spoken(self._left.pop(0), sampling) for _ in range(n)]
        self.log += [(prompt_token_ids, completion) for completion in completions]
        return completions

    def _spoken(self, reply: str, sampling: SamplingParams) -> Completion:
        whole = self._tokenizer.encode(reply)
        token_ids: list[int] = []
        text, stopped_by = "", None
        for token in whole[: sampling.max_tokens]:
            token_ids.append(token)
            text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
            stopped_by = next((stop for stop in sampling.stops.strings if stop in text), None)
            if stopped_by is not None:
                text = text.partition(stopped_by)[0]
                break
        return Completion(
            token_ids=token_ids,
            logprobs=[-0.5 - place / 1024 for place in range(len(token_ids))],
            text=text,
            finish_reason="stop" if stopped_by is not None or len(token_ids) == len(whole) else "length",
            stopped_by=stopped_by,
        )


@asynccontextmanager
async def speaking(
    directory: Path, replies: Sequence[str], **sampling: Any
) -> AsyncIterator[tuple[Session, SessionAddress, Speaking]]:
    """A session at a gateway; `directory` has the tokenizer."""
    tokenizer = ChatTokenizer(directory)
    policy, chat = Speaking(tokenizer, replies), RenderedChat(tokenizer, "qwen3")
    gateway = LocalGateway()
    limits = SamplingParams(**({"max_turns": 20, "max_tokens": 4096} | sampling))
    session = Session(PROBLEM, policy, chat, limits, gateway=gateway)
    try:
        yield session, await session.address(), policy
    finally:
        await gateway.aclose()


def check_recorded(rollout: PlayedRollout, log: list[tuple[list[int], Completion]]) -> None:
    """One branch, which is the last prompt and the last reply; what was sampled trains, and nothing else does."""
    assert rollout.branch_lengths == [], "history was only extended"
    prompt, last = log[-1]
    assert rollout.token_ids == prompt + last.token_ids
    for prompt, completion in log:
        part = slice(len(prompt), len(prompt) + len(completion.token_ids))
        assert rollout.token_ids[: part.stop] == prompt + completion.token_ids
        assert rollout.loss_mask[part] == [1] * len(completion.token_ids)
        assert rollout.inference_logprobs[part] == completion.logprobs
    assert sum(rollout.loss_mask) == sum(len(completion.token_ids) for _, completion in log)


def run(played: Any) -> Any:
    """The result of a coroutine, soon."""
    return asyncio.run(asyncio.wait_for(played, 30))
