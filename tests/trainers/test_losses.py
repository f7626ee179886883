"""Losses against a plain loop in float64, and at the edges of floating point."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.losses.base import LossInputs
from trainers.losses.cross_entropy import cross_entropy_loss
from trainers.losses.grpo import grpo_loss
from trainers.run_config import GrpoLoss

tokens = st.lists(
    st.tuples(st.floats(-8, 0), st.floats(-8, 0), st.floats(-3, 3).filter(lambda advantage: abs(advantage) > 1e-3)),
    min_size=1,
    max_size=20,
)


def inputs(pi: list[float], mu: list[float], advantage: list[float], denominator: float = 1, **kind: Any) -> LossInputs:
    return LossInputs(
        torch.tensor(pi, requires_grad=True, **kind),
        torch.tensor(mu, **kind),
        torch.tensor(advantage, **kind),
        denominator,
    )


def reference_grpo(
    pi: list[float], mu: list[float], advantage: list[float], denominator: float, low: float, high: float
) -> tuple[float, list[float], int, float]:
    """Loss, gradient by pi, clipped tokens and sum of k3, token by token, from the formula."""
    loss, gradient, clipped, k3 = 0.0, [], 0, 0.0
    for log_pi, log_mu, a in zip(pi, mu, advantage, strict=True):
        ratio = math.exp(log_pi - log_mu)
        active = ratio > 1 + high if a > 0 else ratio < 1 - low
        bound = 1 + high if a > 0 else 1 - low
        loss -= (bound if active else ratio) * a / denominator
        gradient.append(0.0 if active else -ratio * a / denominator)
        clipped += active
        k3 += ratio - math.log(ratio) - 1
    return loss, gradient, clipped, k3


@given(tokens, st.floats(0.05, 0.5), st.floats(0.05, 0.5), st.integers(1, 50))
def test_grpo_equals_the_formula_in_value_and_gradient(
    rows: list[tuple[float, float, float]], low: float, high: float, denominator: int
) -> None:
    pi, mu, advantage = (list(column) for column in zip(*rows, strict=True))
    given_inputs = inputs(pi, mu, advantage, denominator, dtype=torch.float64)
    output = grpo_loss(given_inputs, GrpoLoss(clip_low=low, clip_high=high))
    output.loss.backward()
    loss, gradient, clipped, k3 = reference_grpo(pi, mu, advantage, denominator, low, high)
    assert output.loss.item() == pytest.approx(loss, rel=1e-9, abs=1e-12)
    assert given_inputs.trainer_logprobs_K.grad is not None
    assert given_inputs.trainer_logprobs_K.grad.tolist() == pytest.approx(gradient, rel=1e-9, abs=1e-12)
    assert output.metric_sums["clip_fraction"].item() == clipped
    assert output.metric_sums["mismatch_kl"].item() == pytest.approx(k3, rel=1e-9, abs=1e-9)


def test_grpo_by_hand() -> None:
    """Ratios 1, 1.5, .5, .5 with advantages 1, 1, 1, -1: objective 1 + 1.2 + .5 - .8 = 1.9 over 4 tokens."""
    logs = [0.0, math.log(1.5), math.log(0.5), math.log(0.5)]
    given_inputs = inputs(logs, [0.0] * 4, [1.0, 1.0, 1.0, -1.0], 4)
    output = grpo_loss(given_inputs, GrpoLoss())
    output.loss.backward()
    assert output.loss.item() == pytest.approx(-1.9 / 4)
    assert given_inputs.trainer_logprobs_K.grad is not None
    assert given_inputs.trainer_logprobs_K.grad.tolist() == pytest.approx([-1 / 4, 0.0, -0.5 / 4, 0.0])
    assert output.metric_sums["clip_fraction"].item() == 2


@pytest.mark.parametrize("log_ratio", [200.0, -200.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_grpo_survives_hopeless_ratios(log_ratio: float, advantage: float) -> None:
    given_inputs = inputs([log_ratio], [0.0], [advantage])
    output = grpo_loss(given_inputs, GrpoLoss())
    output.loss.backward()
    assert output.loss.isfinite()
    assert given_inputs.trainer_logprobs_K.grad is not None
    assert given_inputs.trainer_logprobs_K.grad.tolist() == [0.0]
    assert output.metric_sums["mismatch_kl"].isfinite()


@given(tokens, st.integers(0, 20))
def test_the_loss_of_a_batch_does_not_depend_on_its_split(rows: list[tuple[float, float, float]], cut: int) -> None:
    def total(parts: list[list[tuple[float, float, float]]]) -> float:
        outputs = [
            grpo_loss(inputs(*(list(c) for c in zip(*part, strict=True)), len(rows), dtype=torch.float64), GrpoLoss())  # type: ignore[misc]
            for part in parts
            if part
        ]
        return sum(output.loss.item() for output in outputs)

    assert total([rows[:cut], rows[cut:]]) == pytest.approx(total([rows]))


def test_no_tokens_give_zero_and_a_gradient() -> None:
    for loss in (lambda given_inputs: grpo_loss(given_inputs, GrpoLoss()), cross_entropy_loss):
        output = loss(inputs([], [], []))
        output.loss.backward()
        assert output.loss.item() == 0.0


def test_cross_entropy_is_the_mean_negative_logprob() -> None:
    given_inputs = inputs([-1.0, -2.0, -6.0], [0.0] * 3, [0.0] * 3, 3)
    output = cross_entropy_loss(given_inputs)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(3.0)
    assert given_inputs.trainer_logprobs_K.grad is not None
    assert given_inputs.trainer_logprobs_K.grad.tolist() == pytest.approx([-1 / 3] * 3)
