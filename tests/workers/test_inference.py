"""Steering a real vLLM server: weights change in flight, and every logprob is of the weights it is labelled with.

Every test runs twice: with whole models, and with LoRA adapters beside one.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from environments.config import SamplingParams
from environments.errors import PolicyRefused
from environments.fakes import TwoTurns
from environments.policy import Completion, OpenAIPolicy
from environments.runner import play_group
from environments.types import Message, PlayedGroup, PlayedRollout, Problem, Split
from tests.lanes import amount, long_lane
from tests.workers.real_server import needs_vllm, started
from tests.workers.waiting import eventually
from trainers.run_config import InferenceConfig, LoraConfig
from workers.fleet.adapters import room_for, write_idle_adapter
from workers.fleet.inference import (
    ReplicaRefused,
    ReplicaUnreachable,
    StartAdapter,
    VllmAdmin,
    WeightsNotLoaded,
)
from workers.fleet.inference import argv as server_argv
from workers.fleet.inference import environ as server_environ

torch = pytest.importorskip("torch")
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from trainers.model.lora import add_adapter, merge_adapter, write_adapter  # noqa: E402
from trainers.model.tiny import write_tiny_model  # noqa: E402

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    needs_vllm,
]

RANK_3 = LoraConfig(rank=3, alpha=6)
PROMPT = [Message("system", "Reverse the text."), Message("user", "hello")]


class Server(NamedTuple):
    """A running server, and two directories it may load."""

    url: str
    api_key: str
    models: list[Path]
    """Whole models, or adapters."""
    merged: list[Path]
    """The same as whole models, adapters added to the weights."""

    def admin(self) -> VllmAdmin:
        return VllmAdmin(self.url, self.api_key)

    def policy(self) -> OpenAIPolicy:
        return OpenAIPolicy(self.url, "policy", api_key=self.api_key, timeout_s=60)


def make_models(directory: Path) -> list[Path]:
    """Two tiny models."""
    models = [directory / f"model_{seed}" for seed in range(2)]
    for seed, path in enumerate(models):
        write_tiny_model(path, seed=seed)
    return models


def make_adapters(directory: Path) -> tuple[list[Path], list[Path]]:
    """An adapter that changes nothing and one that changes a lot, and what they make of one tiny model."""
    models, adapters = [directory / f"model_{at}" for at in range(2)], [directory / f"adapter_{at}" for at in range(2)]
    write_tiny_model(models[0])
    write_idle_adapter(adapters[0], RANK_3)
    model = AutoModelForCausalLM.from_pretrained(models[0], dtype=torch.float32)
    torch.manual_seed(0)
    add_adapter(model, RANK_3)
    tensors = {name: value.data for name, value in model.named_parameters() if value.requires_grad}
    for value in tensors.values():
        value.normal_(std=0.1)
    adapters[1].mkdir()
    write_adapter(adapters[1], RANK_3, str(models[0]), tensors, torch.float32)
    merge_adapter(model)
    model.save_pretrained(models[1])
    return adapters, models


@pytest.fixture(
    scope="module",
    params=[
        "models",
        pytest.param("adapters", marks=long_lane("tests/e2e/test_lora.py serves adapters, and compares logprobs")),
    ],
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server on a tiny model, with or without adapters, labelled version 0."""
    directory = Path(tempfile.mkdtemp(prefix="rollyard-vllm-"))
    if request.param == "models":
        models, adapter = make_models(directory), None
        merged = models
    else:
        models, merged = make_adapters(directory)
        adapter = StartAdapter(models[0], room_for(RANK_3))
    with started(directory, merged[0], adapter) as (url, api_key):
        found = Server(url, api_key, models, merged)
        with found.admin() as admin:
            assert admin.version() is None
            admin.set_version(0)
        yield found
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize(
    ("config", "max_model_len", "fault"),
    [({"model_type": "qwen3"}, 9000, "greater than the derived max_model_len"), ({"hidden_size": 64}, 512, "size of")][
        : amount(1, 2)
    ],
    ids=["config", "weights"][: amount(1, 2)],
)
def test_what_vllm_refuses_of_a_model_is_left_in_a_sentence(
    tmp_path: Path, config: dict[str, object], max_model_len: int, fault: str
) -> None:
    model = tmp_path / "model"
    write_tiny_model(model)
    known = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(known | config))
    inference = InferenceConfig(max_model_len=max_model_len, kv_cache_gib=0.25)
    environ = {**os.environ, **server_environ(inference, cpu=True), "ROLLYARD_FAULT_FILE": str(tmp_path / "fault")}
    command = server_argv(str(model), tmp_path / "s", inference, cpu=True)
    assert subprocess.run(command, env=environ, capture_output=True, timeout=280, check=False).returncode == 1
    assert fault in json.loads((tmp_path / "fault").read_text())["message"]


@pytest.fixture
def fresh(server: Server) -> Server:
    """The server back on model 0 as version 0."""
    with server.admin() as admin:
        admin.load_weights(server.models[0], 0)
    return server


def greedy(server: Server) -> Completion:
    async def ask() -> Completion:
        async with server.policy() as policy:
            prompt = await policy.render(PROMPT)
            return (await policy.sample(prompt, 1, SamplingParams(temperature=0, max_tokens=16)))[0]

    return asyncio.run(ask())


def trainer_logprobs(model_dir: Path, token_ids: list[int], temperature: float) -> list[float]:
    """Logprob of every token but the first, by a float32 forward pass of the Hugging Face model."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        logits_TV = model(torch.tensor([token_ids])).logits[0, :-1] / temperature
    chosen = torch.log_softmax(logits_TV, dim=-1).gather(1, torch.tensor(token_ids[1:])[:, None])
    return [0.0, *chosen[:, 0].tolist()]


def test_logprobs_equal_the_trainers_after_temperature(fresh: Server) -> None:
    async def ask() -> tuple[list[int], list[Completion]]:
        async with fresh.policy() as policy:
            prompt = await policy.render(PROMPT)
            return prompt, await policy.sample(prompt, 8, SamplingParams(temperature=0.7, max_tokens=48))

    prompt, completions = asyncio.run(ask())
    assert len({tuple(completion.token_ids) for completion in completions}) == 8
    for completion in completions:
        expected = trainer_logprobs(fresh.merged[0], prompt + completion.token_ids, 0.7)[len(prompt) :]
        assert completion.logprobs == pytest.approx(expected, abs=1e-3)


def test_a_server_says_what_it_is_busy_with(fresh: Server) -> None:
    with fresh.admin() as admin:
        before = admin.load(10)
        assert (before.running, before.waiting) == (0, 0)
        assert 0 <= before.cache_share <= 1
        sampled = len(greedy(fresh).token_ids)
        assert eventually(lambda: admin.load(10).tokens - before.tokens == sampled)


def test_loaded_weights_change_what_is_sampled_and_what_the_server_is_called(fresh: Server) -> None:
    before = greedy(fresh)
    with fresh.admin() as admin:
        admin.load_weights(fresh.models[1], 7)
        assert admin.version() == 7
        assert not admin.is_paused()
        after = greedy(fresh)
        assert before.token_ids != after.token_ids
        assert (before.first_policy_version, after.first_policy_version) == (0, 7)
        admin.load_weights(fresh.models[0], 8)
    assert greedy(fresh).token_ids == before.token_ids


def test_every_token_in_flight_is_labelled_with_the_weights_that_sampled_it(fresh: Server) -> None:
    """The prompt is long enough to fill cache blocks: keys and values of old weights would show in the logprobs."""
    prompt_messages = [Message("user", "a long prompt, " * 8)]

    async def ask() -> tuple[list[int], list[Completion]]:
        def publish() -> None:
            with fresh.admin() as admin:
                admin.load_weights(fresh.models[1], 1)

        async with fresh.policy() as policy:
            prompt = await policy.render(prompt_messages)
            asked = asyncio.create_task(policy.sample(prompt, 8, SamplingParams(max_tokens=300)))
            # Once this one is through, the others are under way.
            await policy.sample(prompt, 1, SamplingParams(max_tokens=20))
            await asyncio.to_thread(publish)
            return prompt, await asked

    prompt, completions = asyncio.run(ask())
    mixed = [completion for completion in completions if completion.last_policy_version == 1]
    assert mixed, "no request was in flight when the weights changed"
    for completion in completions:
        assert len(completion.token_ids) == 300 or completion.finish_reason == "stop"
        token_ids = prompt + completion.token_ids
        by_version = [trainer_logprobs(model, token_ids, 1.0)[len(prompt) :] for model in fresh.merged]
        switched = [
            position
            for position, logprob in enumerate(completion.logprobs)
            if abs(logprob - by_version[0][position]) > 1e-3
        ]
        first = switched[0] if switched else len(completion.token_ids)
        # On a busy machine one may have begun behind the change.
        assert completion.first_policy_version == (0 if first > 0 else 1)
        assert (first < len(completion.token_ids)) == (completion.last_policy_version == 1)
        assert completion.logprobs[:first] == pytest.approx(by_version[0][:first], abs=1e-3)
        assert completion.logprobs[first:] == pytest.approx(by_version[1][first:], abs=1e-3)


def test_weights_that_cannot_be_read_leave_the_server_paused_until_others_are_loaded(
    fresh: Server, tmp_path: Path
) -> None:
    before = greedy(fresh)
    broken = shutil.copytree(fresh.models[1], tmp_path / "broken")
    [weights] = broken.glob("*.safetensors")
    os.truncate(weights, weights.stat().st_size // 2)
    with fresh.admin() as admin:
        with pytest.raises(WeightsNotLoaded):
            admin.load_weights(broken, 9)
        assert admin.version() is None
        assert admin.is_paused()
        with pytest.raises(ReplicaUnreachable):
            admin.probe(0.5)
        admin.load_weights(fresh.models[0], 10)
        assert admin.version() == 10
    assert greedy(fresh).token_ids == before.token_ids


def test_a_directory_without_a_model_is_refused_before_the_server_is_touched(fresh: Server, tmp_path: Path) -> None:
    with fresh.admin() as admin:
        with pytest.raises(WeightsNotLoaded, match="holds no model"):
            admin.load_weights(tmp_path, 9)
        assert admin.version() == 0
        assert not admin.is_paused()


def test_a_client_without_the_key_gets_no_tokens(server: Server) -> None:
    async def ask() -> None:
        async with OpenAIPolicy(server.url, "policy", api_key="wrong") as policy:
            await policy.render(PROMPT)

    with pytest.raises(PolicyRefused, match="401"):
        asyncio.run(ask())
    with VllmAdmin(server.url) as admin, pytest.raises(ReplicaRefused, match="401"):
        admin.probe(5)


def test_a_prompt_longer_than_the_context_fails_its_rollouts_with_the_servers_words(fresh: Server) -> None:
    class LongProblem(TwoTurns):
        def problem(self, split: Split, index: int) -> Problem:
            return Problem(key="long", messages=[Message("user", "x" * 600)])

    rollouts = play(fresh, LongProblem(), SamplingParams(max_tokens=8), 2)
    errors = [rollout.error for rollout in rollouts if rollout.error]
    assert [error.type for error in errors] == ["ContextFull"] * 2
    assert "512" in errors[0].message


def test_turns_are_tokens_appended_and_each_was_sampled_from_exactly_those_before(fresh: Server) -> None:
    environment = TwoTurns()
    # An untrained model rarely ends its turn, one of some 260 times: many short attempts find some that do.
    rollouts = play(fresh, environment, SamplingParams(max_tokens=60, max_turns=2), 64)
    assert all(rollout.error is None for rollout in rollouts)
    second_turns = [rollout for rollout in rollouts if len(rollout.messages) == 4]
    assert len(second_turns) >= 3
    tokenizer = AutoTokenizer.from_pretrained(fresh.merged[0])
    for rollout in second_turns[:3]:
        expected = trainer_logprobs(fresh.merged[0], rollout.token_ids, 1.0)
        sampled = [position for position, mask in enumerate(rollout.loss_mask) if mask]
        assert [rollout.inference_logprobs[t] for t in sampled] == pytest.approx(
            [expected[t] for t in sampled], abs=1e-3
        )
        given = [token for token, mask in zip(rollout.token_ids, rollout.loss_mask, strict=True) if not mask]
        rendered = "".join(f"<start>{turn}" for turn in ("uone<end>", "a", "uagain<end>", "a"))
        assert tokenizer.decode(given) == rendered
        assert (rollout.dispatch_policy_version, rollout.last_policy_version) == (None, 0)
        assert rollout.generation_s > 0


def test_the_command_line_plays_against_a_real_server(fresh: Server) -> None:
    command = [sys.executable, "-m", "environments", "play", "reverse_text", "--base-url", fresh.url, "--n", "4"]
    found = subprocess.run(
        [*command, "--max-tokens", "12", "--problems", "2", "--json"],
        env={**os.environ, "OPENAI_API_KEY": fresh.api_key},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    groups = [msgspec.json.decode(line, type=PlayedGroup) for line in found.stdout.splitlines()]
    assert [len(group.rollouts) for group in groups] == [4, 4]
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        assert rollout.reward is not None
        assert 0 <= rollout.reward <= 1
        assert 1 <= sum(rollout.loss_mask) <= 12
        assert (rollout.first_policy_version, rollout.last_policy_version) == (0, 0)


def play(server: Server, environment: TwoTurns, sampling: SamplingParams, n: int) -> list[PlayedRollout]:
    async def run() -> list[PlayedRollout]:
        async with server.policy() as policy:
            problem = environment.problem(Split.TRAIN, 0)
            return await play_group(environment, problem, policy, sampling, n, deadline_s=60)

    return asyncio.run(run())
