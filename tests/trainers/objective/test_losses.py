"""Every objective against loops in float64: value and gradient, on ordinary batches and at the edges."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainers.objective import reference_objectives as reference
from tests.trainers.objective.objectives import (
    NORMALISERS,
    assert_equals_the_reference,
    configured,
    evaluate,
    flat,
    random_rows,
    with_advantages,
)
from tests.trainers.objective.reference_objectives import REFERENCES, Row
from trainers.errors import DataError
from trainers.losses import make_loss
from trainers.losses.base import LossInputs, LossOutput
from trainers.objective.step import SUPERVISED
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
    ({"type": "aipo"}, {}),
    ({"type": "aipo", "delta": 1.2}, {"delta": 1.2}),
    ({"type": "aipo", "delta": 1.2, "bound": "truncate"}, {"delta": 1.2, "bound": "truncate"}),
    ({"type": "opo", "delta": 1.5}, {"delta": 1.5}),
    ({"type": "rloo", "bound": "truncate"}, {"bound": "truncate"}),
    ({"type": "rloo", "delta": 1.5}, {"delta": 1.5}),
    ({"type": "cispo"}, {}),
    ({"type": "cispo", "clip_low": 0.3, "clip_high": 0.3}, {"low": 0.7, "high": 1.3}),
    ({"type": "gspo"}, {}),
    ({"type": "gspo", "clip_low": 0.05, "clip_high": 0.1}, {"clip_low": 0.05, "clip_high": 0.1}),
    ({"type": "gspo_token"}, {}),
    ({"type": "gspo_token", "clip_low": 0.05, "clip_high": 0.1}, {"clip_low": 0.05, "clip_high": 0.1}),
    ({"type": "masked_is"}, {}),
    ({"type": "masked_is", "ratio_low": 0.8, "ratio_high": 1.3}, {"low": 0.8, "high": 1.3}),
    ({"type": "dppo"}, {}),
    ({"type": "dppo", "mask_low": 0.02, "mask_high": 0.05, "kl_tau": 0.3}, {"low": 0.02, "high": 0.05, "kl_tau": 0.3}),
    ({"type": "sapo"}, {}),
    ({"type": "sapo", "tau_positive": 2.0, "tau_negative": 3.0}, {"positive": 2.0, "negative": 3.0}),
]
"""Config of a loss, and what its reference is called with."""
EVERY_NORMALISER = ("token", "sequence_mean", "sequence_sum", "group", "constant")
STOPPED = ("cispo", "distill", "gspo_token", "truncate")
"""Losses and bounds with a stopped gradient: finite differences see another one."""


def names(value: Any) -> str | None:
    return "-".join(map(str, value.values())) if isinstance(value, dict) and "type" in value else None


def test_every_loss_has_a_reference_and_a_case() -> None:
    assert {loss["type"] for loss, _ in CASES} == REFERENCES.keys() == NORMALISERS.keys()


@pytest.mark.parametrize(("loss", "args"), CASES, ids=names)
@pytest.mark.parametrize(
    ("spread", "ranks", "seq_len"), [(0.0, 1, 16), (0.001, 2, 16), (0.6, 1, 200), (0.6, 3, 30), (3.0, 2, 16)]
)
def test_value_and_gradient_are_those_of_the_formula_however_the_batch_is_split(
    loss: dict[str, Any], args: dict[str, Any], spread: float, ranks: int, seq_len: int
) -> None:
    rows = random_rows(seed=int(spread * 1000) + ranks, spread=spread)
    assert_equals_the_reference(loss, args, rows, ranks=ranks, seq_len=seq_len)


@pytest.mark.parametrize(("loss", "args"), CASES, ids=names)
def test_every_normaliser_counts_the_whole_batch(loss: dict[str, Any], args: dict[str, Any]) -> None:
    for normaliser in EVERY_NORMALISER:
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


@pytest.mark.parametrize(("loss", "args"), [case for case in CASES if not {*STOPPED} & {*case[0].values()}], ids=names)
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
@pytest.mark.parametrize("name", ["aipo", "dapo", "dr_grpo", "grpo", "gspo", "masked_is", "opo", "rloo", "sapo"])
def test_a_hopeless_ratio_has_no_gradient(name: str, log_ratio: float, advantage: float) -> None:
    rows = [Row([log_ratio], [0.0], [advantage])]
    _, gradient, _ = evaluate(configured({"type": name}), rows, dtype=torch.float32)
    assert gradient.tolist() == [0.0, 0.0, 0.0]


def test_what_happens_above_the_bound_has_a_name() -> None:
    """Ratio 20, bound 8, advantage 1: nothing, weight 8, weight 5, nothing, and a step out of the trust region."""
    row = Row([math.log(0.8)], [math.log(0.04)], [1.0])
    expected = {
        "aipo": 0.0,
        "cispo": -5.0,
        "masked_is": 0.0,
        "dppo": 2 * 1e-3 * math.log(20),
    }
    got = {name: evaluate(configured({"type": name}), [row])[1][-1] for name in expected}
    assert got == pytest.approx(expected, abs=1e-5)
    _, gradient, _ = evaluate(configured({"type": "aipo", "bound": "truncate"}), [row])
    assert gradient[-1] == pytest.approx(-8.0)


def test_gspo_and_its_token_form_agree_when_a_rollout_has_one_advantage() -> None:
    rows = random_rows(seed=9, spread=2e-4)
    value, gradient, sums = evaluate(configured({"type": "gspo"}), rows)
    token_value, token_gradient, token_sums = evaluate(configured({"type": "gspo_token"}), rows)
    assert token_value == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(token_gradient, gradient, rtol=1e-9)
    assert token_sums == pytest.approx(sums)


def test_gspo_token_takes_advantages_per_token_and_gspo_refuses_them() -> None:
    rows = [with_advantages(row, [(-1.0) ** at for at in range(len(row.pi))]) for row in random_rows(seed=10)]
    expected = reference.objective(rows, "gspo_token", {}, "sequence_mean")
    value, gradient, _ = evaluate(configured({"type": "gspo_token"}), rows, token_advantages=True)
    assert value == pytest.approx(expected.value, rel=1e-6)
    np.testing.assert_allclose(gradient, flat(rows, expected.gradient, expected.echo_gradient), rtol=1e-6)
    with pytest.raises(DataError, match="gspo_token"):
        evaluate(configured({"type": "gspo"}), rows, token_advantages=True)


def test_the_gate_of_sapo_has_slope_one_on_policy() -> None:
    value, gradient, sums = evaluate(configured({"type": "sapo"}), [Row([-1.0], [-1.0], [0.5])])
    assert value == pytest.approx(-0.5 * 2)  # 4 / 1 x sigmoid(0) = 2
    assert gradient[-1] == pytest.approx(-0.5)
    assert sums["gate_slope"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    "name",
    ["aipo", "cispo", "dapo", "dppo", "dr_grpo", "grpo", "gspo", "gspo_token", "masked_is", "opo", "rloo", "sapo"],
)
def test_on_policy_every_loss_has_the_plain_policy_gradient(name: str) -> None:
    rows = [replace(row, mu=row.pi) for row in random_rows(seed=11)]
    _, gradient, _ = evaluate(configured({"type": name, "normaliser": "token"}), rows)
    tokens = sum(len(row.pi) for row in rows)
    plain = flat(rows, [[-a / tokens for a in row.advantages] for row in rows], [[] for _ in rows])
    np.testing.assert_allclose(gradient, plain, rtol=1e-6)


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
