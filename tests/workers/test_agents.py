"""Unmodified clients before a real vLLM server: what is recorded is what was sampled, and on policy."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from environments.chat import rendered
from environments.chat.rendered import RenderedChat
from environments.config import SamplingParams
from environments.env import SessionAddress
from environments.gateway.local import LocalGateway
from environments.policy import Completion, OpenAIPolicy
from environments.session import Session
from environments.types import Message, Problem
from tests.environments.speaking import check_recorded
from tests.workers.real_server import needs_vllm, started

torch = pytest.importorskip("torch")
from openai import AsyncOpenAI  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from trainers.model.tiny import write_tiny_model  # noqa: E402

pytestmark = [pytest.mark.vllm, pytest.mark.slow, needs_vllm]

TEMPERATURE = 0.8
TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
PROBLEM = Problem(key="p", messages=[Message("user", "1 + 2?")], tools=[TOOL])


class Served(NamedTuple):
    """A server on the tiny model that knows tools."""

    url: str
    api_key: str
    model: Path


class Logged(OpenAIPolicy):
    """Remembers what went to the engine and came from it."""

    def __init__(self, served: Served) -> None:
        super().__init__(served.url, "policy", api_key=served.api_key, timeout_s=60)
        self.log: list[tuple[list[int], Completion]] = []

    async def sample(self, prompt_token_ids: list[int], n: int, sampling: SamplingParams) -> list[Completion]:
        completions = await super().sample(prompt_token_ids, n, sampling)
        self.log += [(prompt_token_ids, completion) for completion in completions]
        return completions


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="rollyard-vllm-") as place:
        model = Path(place) / "model"
        write_tiny_model(model, tools=True)
        with started(Path(place), model, max_model_len=2048) as (url, api_key):
            yield Served(url, api_key, model)


@asynccontextmanager
async def opened(served: Served) -> AsyncIterator[tuple[Session, SessionAddress, Logged]]:
    gateway = LocalGateway()
    sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=40, max_turns=20, max_total_tokens=2048)
    async with Logged(served) as policy:
        chat = await rendered.find(policy, served.model)
        assert isinstance(chat, RenderedChat)
        session = Session(PROBLEM, policy, chat, sampling, gateway=gateway)
        try:
            yield session, await session.address(), policy
        finally:
            await gateway.aclose()


def test_the_family_is_proven_by_the_server_itself(served: Served) -> None:
    async def find() -> RenderedChat | None:
        async with OpenAIPolicy(served.url, "policy", api_key=served.api_key) as policy:
            return await rendered.find(policy, served.model)

    found = asyncio.run(find())
    assert found is not None
    assert found.family == "qwen3"


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_sdk_played_is_recorded_token_by_token_and_on_policy(served: Served, stream: bool) -> None:
    """A random model says anything at all: calls, halves of marks, replies that were cut."""

    async def run() -> None:
        async with opened(served) as (session, address, policy):
            async with AsyncOpenAI(base_url=address.base_url, api_key=address.api_key) as client:
                messages: list[Any] = [{"role": "user", "content": "1 + 2?"}]
                for turn in range(6):
                    asked: Any = {"model": "any", "messages": messages, "tools": [TOOL], "temperature": 0.1}
                    if stream:
                        reply = await _gathered(await client.chat.completions.create(**asked, stream=True))
                    else:
                        answer = await client.chat.completions.create(**asked)
                        reply = answer.choices[0].message.model_dump(exclude_none=True)
                    messages.append(reply)
                    calls = reply.get("tool_calls", ())
                    results = [{"role": "tool", "content": "3", "tool_call_id": call["id"]} for call in calls]
                    messages += results or [{"role": "user", "content": f"And {turn}?"}]
            assert len(policy.log) == 6
            rollout = session.end()
        check_recorded(rollout, policy.log)
        _check_on_policy(served.model, rollout.token_ids, rollout.loss_mask, rollout.inference_logprobs)

    asyncio.run(run())


def test_what_was_sampled_up_to_a_stop_is_recorded_with_it_and_on_policy(served: Served) -> None:
    stops = ["e", "a", "o", "\n"]

    async def run() -> None:
        async with opened(served) as (session, address, policy):
            async with AsyncOpenAI(base_url=address.base_url, api_key=address.api_key) as client:
                messages: list[Any] = [{"role": "user", "content": "1 + 2?"}]
                for turn in range(6):
                    answer = await client.chat.completions.create(model="any", messages=messages, stop=stops)
                    reply = answer.choices[0].message.model_dump(exclude_none=True)
                    messages += [reply, {"role": "user", "content": f"And {turn}?"}]
                    _, completion = policy.log[-1]
                    if completion.stopped_by is not None:
                        assert not any(stop in reply.get("content", "") for stop in stops)
            rollout = session.end()
        assert sum(completion.stopped_by in stops for _, completion in policy.log) >= 3
        check_recorded(rollout, policy.log)
        _check_on_policy(served.model, rollout.token_ids, rollout.loss_mask, rollout.inference_logprobs)

    asyncio.run(run())


async def _gathered(stream: Any) -> dict[str, Any]:
    """The message of a stream. The SDK's own helper refuses a reply that was cut."""
    reply: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    async for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.content is not None:
                reply["content"] = (reply["content"] or "") + choice.delta.content
            reply["tool_calls"] += [call.model_dump(exclude={"index"}) for call in choice.delta.tool_calls or ()]
    return {key: value for key, value in reply.items() if value is not None and value != []}


def _check_on_policy(model: Path, token_ids: list[int], loss_mask: list[int], inference: list[float]) -> None:
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits_TV = policy(torch.tensor([token_ids])).logits[0, :-1].double() / TEMPERATURE
    logprobs_T = logits_TV.log_softmax(dim=-1).gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]
    mask_T = torch.tensor(loss_mask[1:], dtype=torch.bool)
    log_ratio_K = (logprobs_T - torch.tensor(inference[1:], dtype=torch.float64))[mask_T]
    mismatch_kl = (log_ratio_K.exp() - log_ratio_K - 1).mean().item()
    assert mismatch_kl < 1e-3
    assert log_ratio_K.abs().max().item() < 1e-3


def test_a_client_that_hangs_up_ends_its_request_at_the_server(served: Served) -> None:
    async def run() -> None:
        async with opened(served) as (session, address, policy):
            sampling = SamplingParams(max_tokens=1500, max_turns=5, max_total_tokens=2048)
            long = Session(PROBLEM, policy, session._chat, sampling)
            asking = asyncio.create_task(long.ask([Message("user", "speak")], []))
            await asyncio.sleep(0)
            async with asyncio.timeout(20):
                while not long.in_flight:
                    await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert long.in_flight == 0
            assert len(long.turns) == 0
            async with AsyncOpenAI(base_url=address.base_url, api_key=address.api_key) as client:
                answer = await client.chat.completions.create(
                    model="any", messages=[{"role": "user", "content": "x"}], max_tokens=4
                )
            assert answer.usage is not None
            assert answer.usage.completion_tokens <= 4

    asyncio.run(run())
