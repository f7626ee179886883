"""Every objective against loops in float64: value and gradient, on ordinary batches and at the edges."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainers import reference_objectives as reference
from tests.trainers.objectives import configured, evaluate, flat, random_rows, with_advantages
from tests.trainers.reference_objectives import REFERENCES, Row
from trainers.errors import DataError
from trainers.losses import make_loss
from trainers.losses.base import LossInputs, LossOutput
from trainers.objective import SUPERVISED
from trainers.run_config import CustomLoss

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "grpo"}, {"clip_low": 0.2, "clip_high": 0.2}),
    ({"type": "grpo", "clip_low": 0.1, "clip_high": 0.4}, {"clip_low": 0.1, "clip_high": 0.4}),
    ({"type": "dapo"}, {"clip_low": 0.2, "clip_high": 0.28}),
    ({"type": "dr_grpo"}, {"clip_low": 0.2, "clip_high": 0.2}),
    ({"type": "distill"}, {}),
    ({"type": "distill", "ratio": "none"}, {"ratio": "none"}),
    ({"type": "distill", "delta": 1.1}, {"delta": 1.1}),
    ({"type": "cross_entropy"}, {}),
]
"""Config of a loss, and what its reference is called with."""
NORMALISERS = {
    "cross_entropy": "token",
    "dapo": "token",
    "distill": "token",
    "dr_grpo": "constant",
    "grpo": "sequence_mean",
}
"""Defaults, by loss."""
EVERY_NORMALISER = ("token", "sequence_mean", "sequence_sum", "group", "constant")
DIFFERENTIABLE = ("cross_entropy", "dapo", "dr_grpo", "grpo")
"""Losses without a stopped gradient: finite differences see the same as autograd."""


def names(value: Any) -> str | None:
    return "-".join(map(str, value.values())) if isinstance(value, dict) and "type" in value else None


def assert_equals_the_reference(
    loss: dict[str, Any],
    args: dict[str, Any],
    rows: list[Row],
    normaliser: str | None = None,
    *,
    ranks: int = 1,
    seq_len: int = 64,
    **algorithm: Any,
) -> None:
    used = normaliser or NORMALISERS[loss["type"]]
    objective = configured(loss if normaliser is None else loss | {"normaliser": normaliser}, **algorithm)
    parts: dict[str, dict[str, Any]] = {"corrections": {}, "terms": {}}
    for key, value in algorithm.items():
        section, _, name = key.partition("__")
        if name:
            parts[section][name] = value
    expected = reference.objective(
        rows, loss["type"], args, used, ratio_against=algorithm.get("ratio_against", "inference"), **parts
    )
    value, gradient, _ = evaluate(objective, rows, ranks=ranks, seq_len=seq_len)
    assert value == pytest.approx(expected.value, rel=1e-6, abs=1e-12)
    np.testing.assert_allclose(gradient, flat(rows, expected.gradient, expected.echo_gradient), rtol=1e-6, atol=1e-12)


def test_every_loss_has_a_reference_and_a_case() -> None:
    assert {loss["type"] for loss, _ in CASES} == REFERENCES.keys() == NORMALISERS.keys()


@pytest.mark.parametrize(("loss", "args"), CASES, ids=names)
@pytest.mark.parametrize(("ranks", "seq_len"), [(1, 200), (1, 16), (2, 16), (3, 30)])
@pytest.mark.parametrize("spread", [0.0, 0.001, 0.6, 3.0])
def test_value_and_gradient_are_those_of_the_formula_however_the_batch_is_split(
    loss: dict[str, Any], args: dict[str, Any], ranks: int, seq_len: int, spread: float
) -> None:
    rows = random_rows(seed=int(spread * 1000) + ranks, spread=spread)
    assert_equals_the_reference(loss, args, rows, ranks=ranks, seq_len=seq_len)


@pytest.mark.parametrize("normaliser", EVERY_NORMALISER)
@pytest.mark.parametrize(("loss", "args"), CASES, ids=names)
def test_every_normaliser_counts_the_whole_batch(loss: dict[str, Any], args: dict[str, Any], normaliser: str) -> None:
    assert_equals_the_reference(loss, args, random_rows(seed=5), normaliser, ranks=2, seq_len=16)


@pytest.mark.parametrize(("loss", "args"), CASES, ids=names)
def test_degenerate_batches_are_those_of_the_formula_too(loss: dict[str, Any], args: dict[str, Any]) -> None:
    rows = random_rows(seed=6, rows=4)
    equal = [with_advantages(row, [0.0] * len(row.pi)) for row in rows]
    one = [Row([-0.5], [-0.75], [1.5], [-1.0])]
    masked = [*rows, Row([], [], [], [], group="g1"), Row([], [], [], [], group="empty")]
    far = [Row([-200.0, -0.5, -1.0], [-1.0, -200.0, -1.0], [a] * 3, [-200.0, -0.5, -3.0]) for a in (1.0, -1.0, 0.0)]
    for batch in (equal, one, masked, far, [*rows, *far]):
        assert_equals_the_reference(loss, args, batch, ranks=2, seq_len=20)


@pytest.mark.parametrize(("loss", "args"), [case for case in CASES if case[0]["type"] in DIFFERENTIABLE], ids=names)
def test_gradients_are_those_of_finite_differences(loss: dict[str, Any], args: dict[str, Any]) -> None:
    rows, objective, step = random_rows(seed=7, rows=4, spread=0.4), configured(loss), 1e-6
    _, gradient, _ = evaluate(objective, rows)
    found = []
    for index, row in enumerate(rows):
        found += [0.0, 0.0]
        for at in range(len(row.pi)):

            def moved(by: float, index: int = index, row: Row = row, at: int = at) -> float:
                pi = [*row.pi[:at], row.pi[at] + by, *row.pi[at + 1 :]]
                return evaluate(objective, [*rows[:index], replace(row, pi=pi), *rows[index + 1 :]])[0]

            found.append((moved(step) - moved(-step)) / (2 * step))
    np.testing.assert_allclose(gradient, found, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("loss", "args"), CASES, ids=names)
@pytest.mark.parametrize("log_ratio", [200.0, -200.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_hopeless_tokens_are_finite_in_float32(
    loss: dict[str, Any], args: dict[str, Any], log_ratio: float, advantage: float
) -> None:
    rows = [Row([-1.0, log_ratio], [-1.0, 0.0], [advantage] * 2, [-0.5, 100.0]), Row([-1.0], [-1.0], [1.0], [-1.0])]
    value, gradient, sums = evaluate(configured(loss), rows, dtype=torch.float32)
    assert math.isfinite(value)
    assert np.isfinite(gradient).all()
    assert all(map(math.isfinite, sums.values()))


@pytest.mark.parametrize("log_ratio", [200.0, -200.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_hopeless_ratio_has_no_gradient_through_a_clip(log_ratio: float, advantage: float) -> None:
    for name in ("grpo", "dapo", "dr_grpo"):
        _, gradient, _ = evaluate(
            configured({"type": name}), [Row([log_ratio], [0.0], [advantage])], dtype=torch.float32
        )
        assert gradient.tolist() == [0.0, 0.0, 0.0]


def test_grpo_by_hand() -> None:
    """Ratios 1, 1.5, .5, .5 with advantages 1, 1, 1, -1: objective 1 + 1.2 + .5 - .8 = 1.9 over 4 tokens."""
    row = Row([0.0, math.log(1.5), math.log(0.5), math.log(0.5)], [0.0] * 4, [1.0, 1.0, 1.0, -1.0])
    value, gradient, sums = evaluate(configured({"type": "grpo"}), [row], token_advantages=True)
    assert value == pytest.approx(-1.9 / 4)
    assert gradient.tolist() == pytest.approx([0, 0, -1 / 4, 0.0, -0.5 / 4, 0.0])
    assert sums["clip_fraction"] == 2
    # r - log r - 1: 0, .5 - .405465, 2 x (-.5 + .693147)
    assert sums["mismatch_kl"] == pytest.approx(0.094535 + 2 * 0.193147, abs=1e-5)


def test_supervised_is_the_mean_negative_logprob() -> None:
    value, gradient, sums = evaluate(SUPERVISED, [Row([-1.0, -2.0], [0.0] * 2, [0.0] * 2), Row([-6.0], [0.0], [0.0])])
    assert value == pytest.approx(3.0)
    assert gradient[gradient != 0].tolist() == pytest.approx([-1 / 3] * 3)
    assert sums == {"loss": pytest.approx(3.0)}


def test_no_tokens_give_zero_and_a_gradient() -> None:
    for objective in (SUPERVISED, configured({"type": "grpo"}, terms__echo=0.1, corrections__max_divergence=1.0)):
        value, gradient, _ = evaluate(objective, [Row([], [], [])], ranks=2)
        assert (value, gradient.tolist()) == (0.0, [0.0, 0.0])


def test_advantages_may_differ_from_token_to_token() -> None:
    rows = [with_advantages(row, [(-1.0) ** at for at in range(len(row.pi))]) for row in random_rows(seed=8)]
    expected = reference.objective(rows, "grpo", {"clip_low": 0.2, "clip_high": 0.2}, "sequence_mean")
    value, gradient, _ = evaluate(configured({"type": "grpo"}), rows, token_advantages=True)
    assert value == pytest.approx(expected.value, rel=1e-6)
    np.testing.assert_allclose(gradient, flat(rows, expected.gradient, expected.echo_gradient), rtol=1e-6)


def doubled(inputs: LossInputs, *, factor: float) -> LossOutput:
    """A loss of somebody's own."""
    return LossOutput(-factor * inputs.advantages_K * inputs.trainer_logprobs_K)


def test_a_loss_of_ones_own_is_found_by_its_dotted_path() -> None:
    objective = configured({"type": "custom", "path": f"{__name__}.doubled", "args": {"factor": 2.0}})
    value, gradient, _ = evaluate(objective, [Row([-1.0, -2.0], [-1.0, -1.0], [0.5, 0.5])])
    assert value == pytest.approx(1.5)
    assert gradient.tolist() == pytest.approx([0, 0, -0.5, -0.5])


@pytest.mark.parametrize("path", ["no_such_package.loss", f"{__name__}.missing", f"{__name__}.CASES"])
def test_a_path_that_leads_nowhere_is_named(path: str) -> None:
    with pytest.raises(DataError, match=r"algorithm\.loss\.path"):
        make_loss(CustomLoss(path=path))
