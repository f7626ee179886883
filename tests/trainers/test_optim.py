"""Learning-rate schedules by hand, what each optimizer does to which parameter, and no step into nonsense."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.trainers.support import gather_model, optimizer_state
from trainers.distributed.mesh import World
from trainers.errors import Diverged, ModelUnsupported
from trainers.model.policy import load_policy, score_tokens
from trainers.optimizers.build import build_optimizer, learning_rate, optimizer_step
from trainers.optimizers.muon import orthogonalise
from trainers.packing import micro_batch, training_sequence
from trainers.run_config import ModelConfig, OptimizerConfig


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "constant"}, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"schedule": "linear"}, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ({"schedule": "linear", "decay_steps": 2}, [0.5, 1.0, 1.0, 1.0, 1.0, 0.5]),
        ({"schedule": "linear", "lr_floor": 0.2}, [0.5, 1.0, 1.0, 0.8, 0.6, 0.4]),
        ({"schedule": "cosine"}, [0.5, 1.0, 1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]),
        ({"schedule": "cosine", "lr_floor": 0.5, "decay_steps": 2}, [0.5, 1.0, 1.0, 1.0, 1.0, 0.75]),
    ],
)
def test_schedule_warms_up_and_then_stays_or_falls(options: dict[str, Any], expected: list[float]) -> None:
    config = OptimizerConfig.model_validate({"lr": 1.0, "warmup_steps": 2, **options})
    assert [learning_rate(config, step, 6) for step in range(6)] == pytest.approx(expected)


def test_decay_touches_matrices_only() -> None:
    model = torch.nn.Linear(2, 2)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    optimizer = build_optimizer(model, OptimizerConfig(lr=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer_step(model, optimizer, lr=0.1, max_grad_norm=1.0)
    assert model.weight.tolist() == [[pytest.approx(0.95)] * 2] * 2
    assert model.bias.tolist() == [1.0, 1.0]


def test_norm_before_clipping_is_returned_and_gradients_are_cleared() -> None:
    model = torch.nn.Linear(1, 2, bias=False)
    optimizer = build_optimizer(model, OptimizerConfig(lr=0.1))
    model.weight.grad = torch.tensor([[3.0], [4.0]])
    assert optimizer_step(model, optimizer, lr=0.1, max_grad_norm=1.0) == pytest.approx(5.0)
    assert model.weight.grad is None


def test_sgd_steps_down_the_clipped_gradient() -> None:
    model = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = build_optimizer(model, OptimizerConfig(kind="sgd", momentum=0.0))
    model.weight.grad = torch.tensor([[3.0], [4.0]])
    optimizer_step(model, optimizer, lr=1.0, max_grad_norm=1.0)
    torch.testing.assert_close(model.weight.detach(), torch.tensor([[-0.6], [-0.8]]))


@pytest.mark.parametrize("shape", [(8, 8), (6, 20), (20, 6)])
def test_newton_schulz_brings_every_singular_value_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    result = orthogonalise(matrix)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.linalg.svdvals(result).sub(1).abs().max() < 0.5
    assert (result * (u @ vh)).sum() / result.norm() / (u @ vh).norm() > 0.95, "it points where U V^T does"


def test_muon_takes_hidden_matrices_and_leaves_the_rest_to_adamw(model_dir: Path, world: World) -> None:
    model = load_policy(ModelConfig(path=str(model_dir)), world)
    optimizer = build_optimizer(model, OptimizerConfig(kind="muon", lr=1e-3))
    before = {name: tensor.clone() for name, tensor in gather_model(model).items()}
    scores = score_tokens(model, micro_batch([training_sequence(np.arange(30), np.ones(30), 64)]), 1.0)
    scores.logprobs_K.sum().backward()
    optimizer_step(model, optimizer, lr=1e-3, max_grad_norm=1.0)
    state = optimizer_state(model, optimizer)
    of_muon = {name.removeprefix("momentum_buffer/") for name in state if name.startswith("momentum_buffer/")}
    of_adamw = {name.removeprefix("exp_avg/") for name in state if name.startswith("exp_avg/")}
    assert of_muon | of_adamw == before.keys()
    assert of_muon == {name for name in before if "_proj" in name}
    for name, tensor in gather_model(model).items():
        moved = (tensor - before[name]).square().mean().sqrt()
        assert 0 < moved < 1.5e-3, f"{name}: an update has about the size of AdamW's"


def test_muon_leaves_experts_to_adamw_and_says_how_many_parameters_each_has(caplog: pytest.LogCaptureFixture) -> None:
    config = Qwen3MoeConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
    )  # fmt: skip
    with caplog.at_level("INFO"):
        optimizer = build_optimizer(Qwen3MoeForCausalLM(config), OptimizerConfig(kind="muon"))
    assert {parameter.ndim for parameter in optimizer.param_groups[0]["params"]} == {2}
    assert {parameter.ndim for group in optimizer.param_groups[1:] for parameter in group["params"]} == {1, 2, 3}
    projections, experts, router, embeddings, norms = 4 * 16 * 16, 4 * 3 * 16 * 8, 4 * 16, 2 * 8 * 16, 3 * 16 + 2 * 8
    others = experts + router + embeddings + norms
    assert caplog.messages[-1] == f"muon has {projections} parameters, AdamW the other {others}"


def test_muon_refuses_a_model_without_linear_layers() -> None:
    config = GPT2Config(vocab_size=8, n_embd=16, n_layer=1, n_head=2)  # whose layers transformers calls Conv1D
    with pytest.raises(ModelUnsupported, match=r"optimizer\.kind=muon .*GPT2LMHeadModel.*set optimizer\.kind to adamw"):
        build_optimizer(GPT2LMHeadModel(config), OptimizerConfig(kind="muon"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_never_reaches_the_weights(bad: float) -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    before = model.weight.item()
    optimizer = build_optimizer(model, OptimizerConfig(lr=0.1))
    model.weight.grad = torch.tensor([[bad]])
    with pytest.raises(Diverged, match="gradient norm"):
        optimizer_step(model, optimizer, lr=0.1, max_grad_norm=1.0)
    assert model.weight.item() == before
