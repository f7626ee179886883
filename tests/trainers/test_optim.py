"""Learning-rate schedules by hand, weight decay on matrices only, and no step into nonsense."""

import pytest
import torch

from trainers.errors import Diverged
from trainers.optim import build_optimizer, learning_rate, optimizer_step
from trainers.run_config import OptimizerConfig


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]), ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25])],
)
def test_schedule_warms_up_and_then_stays_or_falls(schedule: str, expected: list[float]) -> None:
    config = OptimizerConfig.model_validate({"lr": 1.0, "warmup_steps": 2, "schedule": schedule})
    assert [learning_rate(config, step, 6) for step in range(6)] == expected


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


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_never_reaches_the_weights(bad: float) -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    before = model.weight.item()
    optimizer = build_optimizer(model, OptimizerConfig(lr=0.1))
    model.weight.grad = torch.tensor([[bad]])
    with pytest.raises(Diverged, match="gradient norm"):
        optimizer_step(model, optimizer, lr=0.1, max_grad_norm=1.0)
    assert model.weight.item() == before
