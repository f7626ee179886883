"""A server that is several processes: what it samples after new weights is of those, whichever way it is split."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from environments.config import SamplingParams
from tests.lanes import long_lane
from tests.workers.real_server import needs_vllm, started
from tests.workers.test_inference import PROMPT, Server, greedy, make_models, trainer_logprobs

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    needs_vllm,
    long_lane("how a server is told to split is in tests/workers/test_commands.py"),
]


@pytest.mark.parametrize(
    "split",
    [
        {"tensor_parallel": 2},
        {"data_parallel": 2},
        {"tensor_parallel": 2, "data_parallel": 2},
    ],
    ids=str,
)
def test_every_process_has_its_part_of_the_new_weights(split: dict[str, int]) -> None:
    directory = Path(tempfile.mkdtemp(prefix="rollyard-vllm-"))
    models = make_models(directory)
    further = {"max_num_seqs": 16, "prefix_caching": False, "arguments": {"block-size": 32, "seed": 7}}
    with started(directory, models[0], **split, **further) as (url, api_key):
        server = Server(url, api_key, models, models)
        before = greedy(server)
        with server.admin() as admin:
            admin.load_weights(models[1], 7)
            assert admin.version() == 7
            after, sampled = greedy(server), sample(server)
            admin.load_weights(models[0], 8)
            load = admin.load(10)
        assert greedy(server).token_ids == before.token_ids != after.token_ids
        for prompt, tokens, logprobs in sampled:
            expected = trainer_logprobs(models[1], prompt + tokens, 0.7)[len(prompt) :]
            assert logprobs == pytest.approx(expected, abs=1e-3)
        assert load.tokens >= sum(len(tokens) for _, tokens, _ in sampled)
        assert 0 <= load.cache_share <= 1
    shutil.rmtree(directory, ignore_errors=True)


def sample(server: Server) -> list[tuple[list[int], list[int], list[float]]]:
    """Prompt, tokens and their logprobs, of several requests: engines beside each other have some each."""

    async def ask() -> list[tuple[list[int], list[int], list[float]]]:
        async with server.policy() as policy:
            prompt = await policy.render(PROMPT)
            asked = [policy.sample(prompt, 2, SamplingParams(temperature=0.7, max_tokens=32)) for _ in range(4)]
            answers = [completion for answer in await asyncio.gather(*asked) for completion in answer]
            return [(prompt, each.token_ids, each.logprobs) for each in answers]

    return asyncio.run(ask())
