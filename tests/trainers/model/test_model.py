"""The policy's logprobs: packing changes nothing, temperature and entropy mean what they say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Ernie4_5_MoeConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    Lfm2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MiniMaxM2Config,
    MistralConfig,
    MixtralConfig,
    ModernBertDecoderConfig,
    Phi3Config,
    PhimoeConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    RecurrentGemmaConfig,
    Starcoder2Config,
)

from tests.model_files import write_model
from tests.trainers.conftest import tiny_llama_config
from tests.trainers.support import gather_model, in_bfloat16
from trainers.distributed.mesh import World
from trainers.distributed.sharding import shard
from trainers.errors import ModelUnsupported
from trainers.model import policy as policy_module
from trainers.model.attention import PACKED_ATTENTION, packed_attention, packed_layout, register_packed_attention
from trainers.model.policy import load_policy, load_tokenizer, score_tokens
from trainers.model.tiny import tiny_tokenizer
from trainers.packing import TrainingSequence, micro_batch, training_sequence
from trainers.run_config import ModelConfig
from trainers.storage.model_check import check

LENGTHS = [3, 40, 17, 2, 33, 9]
EQUAL_LENGTHS = [12, 12, 12]


def random_sequences(seed: int = 0, lengths: Sequence[int] = LENGTHS) -> list[TrainingSequence]:
    rng = np.random.default_rng(seed)
    return [training_sequence(rng.integers(0, 256, n), np.ones(n, np.uint8), 64) for n in lengths]


@pytest.fixture(scope="module", params=["qwen3, tied embeddings", "llama, grouped queries"])
def directory(request: pytest.FixtureRequest, model_dir: Path, llama_dir: Path) -> Path:
    return model_dir if "qwen3" in request.param else llama_dir


@pytest.fixture(scope="module")
def policy(directory: Path, world: World) -> PreTrainedModel:
    return load_policy(ModelConfig(path=str(directory)), world)


def reference_logits(directory: Path, token_ids: np.ndarray) -> torch.Tensor:
    """transformers' own eager attention, one sequence at a time, in float64."""
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float64)
    with torch.no_grad():
        logits: torch.Tensor = model(torch.from_numpy(token_ids)[None]).logits[0]
    return logits


@pytest.mark.parametrize("lengths", [LENGTHS, EQUAL_LENGTHS])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_logprobs_and_entropies_equal_unpacked_ones(
    policy: PreTrainedModel, directory: Path, temperature: float, lengths: Sequence[int]
) -> None:
    sequences = random_sequences(lengths=lengths)
    packed = score_tokens(policy, micro_batch(sequences), temperature)
    logprobs, entropies = [], []
    for sequence in sorted(sequences, key=lambda sequence: -len(sequence.token_ids_T)):
        logprobs_TV = (reference_logits(directory, sequence.token_ids_T) / temperature).log_softmax(-1)[:-1]
        targets = torch.from_numpy(sequence.token_ids_T[1:])
        logprobs.append(logprobs_TV.gather(1, targets[:, None])[:, 0])
        entropies.append(-(logprobs_TV.exp() * logprobs_TV).sum(-1))
    torch.testing.assert_close(packed.logprobs_K.double(), torch.cat(logprobs), atol=1e-5, rtol=0)
    torch.testing.assert_close(packed.entropy_K.double(), torch.cat(entropies), atol=1e-5, rtol=0)


@pytest.mark.parametrize("lengths", [LENGTHS, EQUAL_LENGTHS])
def test_gradients_of_packed_and_single_sequences_are_equal(policy: PreTrainedModel, lengths: Sequence[int]) -> None:
    def gradient(batches: list[list[TrainingSequence]]) -> torch.Tensor:
        policy.zero_grad()
        for batch in batches:
            score_tokens(policy, micro_batch(batch), 1.0).logprobs_K.sum().backward()
        return torch.cat([p.grad.full_tensor().flatten() for p in policy.parameters()])  # type: ignore[union-attr]

    sequences = random_sequences(1, lengths)
    packed = gradient([sequences])
    single = gradient([[sequence] for sequence in sequences])
    torch.testing.assert_close(packed, single, atol=1e-4, rtol=1e-4)


def test_a_dummy_micro_batch_has_zero_gradients(policy: PreTrainedModel) -> None:
    policy.zero_grad()
    score_tokens(policy, micro_batch([]), 1.0).logprobs_K.sum().backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in policy.parameters())


def test_gradients_equal_those_of_all_logits_at_once(policy: PreTrainedModel, directory: Path) -> None:
    sequence = random_sequences(2)[1]
    policy.zero_grad()
    score_tokens(policy, micro_batch([sequence]), 0.7).logprobs_K.sum().backward()
    naive = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    tokens = torch.from_numpy(sequence.token_ids_T)
    torch.nn.functional.cross_entropy(naive(tokens[None]).logits[0, :-1] / 0.7, tokens[1:], reduction="sum").backward()
    expected = dict(naive.named_parameters())
    for name, parameter in policy.named_parameters():
        ours, theirs = parameter.grad, expected[name].grad
        assert isinstance(ours, DTensor)
        assert theirs is not None
        torch.testing.assert_close(-ours.full_tensor(), theirs, atol=1e-5, rtol=1e-4)


def test_a_model_that_does_more_to_its_logits_is_refused(world: World, tmp_path: Path) -> None:
    config = tiny_llama_config()
    config.final_logit_softcapping = 30.0
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelUnsupported, match=r"final_logit_softcapping.*model\.path"):
        load_policy(ModelConfig(path=str(tmp_path)), world)


SMALL: dict[str, Any] = {"vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SERVED = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
EXPERTS = {"num_key_value_heads": 2, "intermediate_size": 32, "num_experts_per_tok": 2}
UNLIKE_ITSELF = {
    "mixtral": MixtralConfig(**SERVED, **EXPERTS, num_local_experts=4, router_jitter_noise=0.5, head_dim=16),
    "minimax_m2": MiniMaxM2Config(**SERVED, **EXPERTS, num_local_experts=4, router_jitter_noise=0.5, head_dim=16),
    "qwen2_moe": Qwen2MoeConfig(
        **SERVED, **EXPERTS, moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=4,
        use_sliding_window=True, sliding_window=5, max_window_layers=2,
    ),
    "phimoe": PhimoeConfig(**SERVED, **EXPERTS, num_local_experts=4),
    "modernbert-decoder": ModernBertDecoderConfig(**SERVED, intermediate_size=32, pad_token_id=0),
}  # fmt: skip
REFUSED = {"phimoe": "chooses experts by chance", "modernbert-decoder": r"lm_head\.dense\.weight"}


@pytest.mark.parametrize("kind", UNLIKE_ITSELF)
def test_a_model_scores_as_it_is_served_or_is_refused(world: World, tmp_path: Path, kind: str) -> None:
    settings: PreTrainedConfig = UNLIKE_ITSELF[kind]
    assert settings.model_type == kind
    model = AutoModelForCausalLM.from_config(settings, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():  # of as much influence as in a model that has learned
            parameter.mul_(5)
    model.save_pretrained(tmp_path)
    config = ModelConfig(path=str(tmp_path))
    if kind in REFUSED:
        with pytest.raises(ModelUnsupported, match=REFUSED[kind]):
            load_policy(config, world, dropout=False)
        return
    [sequence] = random_sequences(lengths=[40])
    tokens = torch.from_numpy(sequence.token_ids_T)
    with torch.no_grad():
        served = model.eval()(tokens[None], use_cache=False).logits[0, :-1].log_softmax(-1)
    scored = score_tokens(load_policy(config, world, dropout=False), micro_batch([sequence]), 1.0).logprobs_K
    torch.testing.assert_close(scored, served.gather(1, tokens[1:, None])[:, 0], atol=1e-4, rtol=0)


MIXING = {
    "kind conv": Lfm2Config(**SMALL, num_key_value_heads=2, layer_types=["conv"]),
    "layers with a state": RecurrentGemmaConfig(**SMALL, block_types=["recurrent"]),
    "an attention of its own": BloomConfig(vocab_size=8, hidden_size=16, n_layer=1, n_head=2),
}


@pytest.mark.parametrize("what", MIXING)
def test_a_model_whose_layers_would_mix_packed_sequences_is_refused(world: World, tmp_path: Path, what: str) -> None:
    config: PreTrainedConfig = MIXING[what]
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelUnsupported, match=f"cannot be trained: it has .*{what}"):
        load_policy(ModelConfig(path=str(tmp_path)), world)


def test_a_config_whose_layers_cannot_be_told_is_one_that_does_not_load(tmp_path: Path) -> None:
    model = write_model(tmp_path, text_encoder={}, text_config={})
    answer = check(str(model), trust_remote_code=False)
    assert "has a config that does not load: ValueError: Multiple valid text configs" in answer["fault"]


def test_a_tokenizer_that_lies_beside_one_of_mistrals_own_is_the_one_that_loads(tmp_path: Path) -> None:
    pytest.importorskip("mistral_common")
    settings = MistralConfig(vocab_size=259, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    settings.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    tokenizer = load_tokenizer(ModelConfig(path=str(tmp_path)))
    assert tokenizer.chat_template == tiny_tokenizer().chat_template
    tokenizer.save_pretrained(tmp_path / "version")
    assert (tmp_path / "version" / "tokenizer.json").exists()
    assert check(str(tmp_path), trust_remote_code=False)["fault"] == ""


@pytest.mark.parametrize("extra", ["attention_mask", "s_aux"])
def test_attention_that_wants_what_packing_does_not_do_is_refused(extra: str) -> None:
    query = torch.zeros(1, 2, 3, 4)
    options: dict[str, Any] = {"attention_mask": None} | {extra: torch.zeros(1, 1, 3, 3)}
    with pytest.raises(ModelUnsupported, match=f"does not do {extra}"):
        packed_attention(
            torch.nn.Identity(), query, query, query, packed_layout=packed_layout([3], query.device), **options
        )


def test_a_router_that_a_model_keeps_in_float32_is_not_rounded_as_the_rest_is(world: World, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Ernie4_5_MoeConfig(
        vocab_size=256, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, moe_num_experts=4, moe_k=2, moe_intermediate_size=16, moe_layer_start_index=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "e_score_correction_bias" in name:  # which chooses the last two, and none of them in bfloat16
                tensor.copy_(torch.tensor([[256, 256.25, 256.5, 256.75]]))
            if name.endswith("gate.weight"):
                tensor.normal_()
            if "experts" in name:
                tensor[:2] *= 30
    model.save_pretrained(tmp_path)
    batch = micro_batch(random_sequences(lengths=[40]))
    exact, rounded = (
        score_tokens(load_policy(ModelConfig(path=str(tmp_path), dtype=dtype), world), batch, 1.0).logprobs_K
        for dtype in ("float32", "bfloat16")
    )
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0)


def unmapped(model: torch.nn.Module, directory: Path) -> list[str]:
    """Parameters that are no part of a mapped file of the directory."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    areas = [line[0].split("-") for line in lines if line[-1].startswith(f"{directory}/")]
    mapped = [range(int(begin, 16), int(end, 16)) for begin, end in areas]
    named = model.named_parameters()
    return [name for name, parameter in named if not any(parameter.data_ptr() in area for area in mapped)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_take_no_memory_before_they_are_sharded_and_are_float32_then(
    directory: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    source = directory if dtype == "float32" else in_bfloat16(directory, tmp_path)
    copied: list[str] = []

    def watched(model: PreTrainedModel, *arguments: Any) -> None:
        copied.extend(unmapped(model, source))
        shard(model, *arguments)

    monkeypatch.setattr(policy_module, "shard", watched)
    model = load_policy(ModelConfig(path=str(source)), world)
    assert copied == []
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    expected = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    assert model.config.to_dict() == expected.config.to_dict()
    tensors = gather_model(model)
    for name, parameter in expected.named_parameters():
        assert torch.equal(tensors[name], parameter), name


@pytest.mark.parametrize("drops", [True, False])
def test_dropout_of_a_models_own_config_is_in_force_only_where_it_is_asked_for(
    drops: bool, world: World, tmp_path: Path
) -> None:
    small = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    starcoder = {"num_key_value_heads": 2, "residual_dropout": 0.1, "embedding_dropout": 0.1}
    for settings in (GPT2Config(**small), Starcoder2Config(**small, **starcoder)):
        directory = tmp_path / settings.model_type
        AutoModelForCausalLM.from_config(settings).save_pretrained(directory)
        model = load_policy(ModelConfig(path=str(directory)), world, dropout=drops)
        batch = micro_batch(random_sequences(lengths=[40]))
        logprobs = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            logprobs.append(score_tokens(model, batch, 1.0).logprobs_K.detach())
        assert model.training
        assert torch.equal(*logprobs) is not drops


def test_what_is_computed_for_a_model_is_not_rounded_as_its_files_are(world: World, tmp_path: Path) -> None:
    config = GemmaConfig(
        vocab_size=32, hidden_size=40, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    GemmaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    model = load_policy(ModelConfig(path=str(tmp_path)), world)
    assert float(model.model.embed_tokens.embed_scale) == pytest.approx(40**0.5, rel=1e-6)


def test_a_tensor_is_not_rounded_to_the_format_of_the_others(directory: Path, world: World, tmp_path: Path) -> None:
    in_bfloat16(directory, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    precise = torch.full_like(tensors["model.norm.weight"], 1 / 3, dtype=torch.float32)
    save_file(tensors | {"model.norm.weight": precise}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = load_policy(ModelConfig(path=str(tmp_path)), world)
    assert torch.equal(gather_model(model)["model.norm.weight"], precise)


FACTORS = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}


@pytest.mark.parametrize("longest", [32, 64])
def test_a_sequence_scores_the_same_whatever_it_is_packed_with_and_by_the_longest_that_is_served(
    world: World, tmp_path: Path, longest: int
) -> None:
    lengths = {"max_position_embeddings": 128, "original_max_position_embeddings": 32}
    rotary = {"rope_type": "longrope", "rope_theta": 100.0, **FACTORS}
    settings = Phi3Config(**SERVED, **lengths, intermediate_size=32, pad_token_id=0, rope_parameters=rotary)
    AutoModelForCausalLM.from_config(settings).save_pretrained(tmp_path)
    policy = load_policy(ModelConfig(path=str(tmp_path)), world, longest=longest)
    long, short = random_sequences(lengths=[60, 20])
    alone = score_tokens(policy, micro_batch([short]), 1.0).logprobs_K
    packed = score_tokens(policy, micro_batch([long, short]), 1.0).logprobs_K
    torch.testing.assert_close(packed[-len(alone) :], alone, atol=1e-5, rtol=0)
    factor = "short_factor" if longest == 32 else "long_factor"
    settings.rope_parameters["short_factor"] = FACTORS[factor]  # which transformers takes for 20 tokens
    served = AutoModelForCausalLM.from_pretrained(tmp_path, config=settings, attn_implementation="eager")
    tokens = torch.from_numpy(short.token_ids_T)
    expected = served(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
    torch.testing.assert_close(alone, expected, atol=1e-5, rtol=0)


def test_a_rotary_embedding_that_changes_with_the_length_is_refused_where_it_would(
    world: World, tmp_path: Path
) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
    settings = LlamaConfig(**SERVED, intermediate_size=32, max_position_embeddings=64, rope_parameters=dynamic)
    AutoModelForCausalLM.from_config(settings).save_pretrained(tmp_path)
    load_policy(ModelConfig(path=str(tmp_path)), world, longest=64)
    with pytest.raises(ModelUnsupported, match=r"above 64 its rotary .*Set inference\.max_model_len.* to at most 64"):
        load_policy(ModelConfig(path=str(tmp_path)), world, longest=65)


def attend(**options: object) -> torch.Tensor:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, **options,
    )  # fmt: skip
    register_packed_attention()
    model = Qwen3ForCausalLM(config)
    lengths = [12, 9, 3]
    tokens = torch.randint(32, (1, sum(lengths)))
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    extra = (
        {"packed_layout": packed_layout(lengths, tokens.device)}
        if options["attn_implementation"] == PACKED_ATTENTION
        else {}
    )
    logits: torch.Tensor = model(tokens, position_ids=positions, use_cache=False, **extra).logits
    return logits


@pytest.mark.parametrize("window", [{}, {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}])
def test_grouped_queries_and_sliding_windows_equal_the_dense_mask(window: dict[str, object]) -> None:
    dense = attend(attn_implementation="eager", **window)
    torch.testing.assert_close(attend(attn_implementation=PACKED_ATTENTION, **window), dense, atol=1e-5, rtol=1e-5)
