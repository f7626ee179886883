"""The client of Atropos' servers of type vllm, unmodified, plays a session: what it was told is what was recorded."""

import asyncio
import json
from pathlib import Path

import pytest

from environments.chat.template import TemplateChat
from environments.config import SamplingParams
from environments.fakes import ScriptedPolicy
from environments.gateway.local import LocalGateway
from environments.session import Session
from environments.types import Message, PlayedRollout, Problem
from tests.e2e.yard import make_tiny_model

pytestmark = pytest.mark.slow

CLIENT = """
import asyncio, json, sys
from atroposlib.envs.server_handling.server_baseline import APIServerConfig
from atroposlib.envs.server_handling.vllm_server import VLLMServer

async def main():
    base_url, key, tokenizer = sys.argv[1:]
    config = APIServerConfig(
        model_name="policy", tokenizer_name=tokenizer, base_url=base_url, api_key=key, server_type="vllm"
    )
    server = VLLMServer(config)
    prompt, replies, logprobs, reasons = await server.tokens_and_logprobs_completion(
        prompt="1 + 2?", n=2, max_tokens=8, temperature=0.3
    )
    further = [*prompt, *replies[1], 10]
    _, again, _, _ = await server.tokens_and_logprobs_completion(prompt="-", input_ids=further, n=1, max_tokens=8)
    chat = await server.chat_completion(messages=[{"role": "user", "content": "x"}], n=1, max_tokens=8)
    told = {"prompt": prompt, "replies": replies, "logprobs": logprobs, "reasons": reasons, "again": again[0]}
    print(json.dumps(told | {"chat": chat.choices[0].message.content}))

asyncio.run(main())
"""


def test_a_managed_server_is_told_what_was_sampled(atropos_bin: Path, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))

    async def play() -> tuple[dict[str, list[int]], PlayedRollout]:
        gateway, policy = LocalGateway(), ScriptedPolicy(["three", "3", "yes", "no"])
        problem = Problem(key="p", messages=[Message("user", "1 + 2?")])
        session = Session(problem, policy, TemplateChat(policy), SamplingParams(max_turns=9), gateway=gateway)
        address = await session.address()
        process = await asyncio.create_subprocess_exec(
            *(str(atropos_bin / "python"), "-c", CLIENT, address.base_url, address.api_key, str(model)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 120)
        await gateway.aclose()
        assert process.returncode == 0, err.decode()[-3000:]
        return json.loads(out.splitlines()[-1]), session.end()

    told, rollout = asyncio.run(play())
    assert [bytes(reply[:-1]).decode() for reply in told["replies"]] == ["three", "3"]
    assert told["reasons"] == ["stop", "stop"]
    first, second, third = told["prompt"] + told["replies"][0], told["prompt"] + told["replies"][1], told["again"]
    assert told["chat"] == "no"
    assert rollout.branch_lengths[:2] == [len(first), len(second) + 1 + len(third)]
    assert rollout.token_ids[: sum(rollout.branch_lengths[:2])] == [*first, *second, 10, *third]
    sampled = sum(rollout.loss_mask)
    assert sampled == sum(map(len, told["replies"])) + len(third) + len("no") + 1
