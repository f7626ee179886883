"""The objective of a batch: normalisers, corrections and terms, against loops in float64."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.trainers.objective.objectives import assert_equals_the_reference, configured, evaluate, random_rows
from tests.trainers.objective.reference_objectives import Row
from trainers.errors import DataError
from trainers.objective.normalisers import token_weights

GRPO = ({"type": "grpo"}, {"clip_low": 0.2, "clip_high": 0.2})
GSPO = ({"type": "gspo"}, dict[str, Any]())
AIPO = ({"type": "aipo"}, dict[str, Any]())


@pytest.mark.parametrize(
    ("normaliser", "expected"),
    [
        ("token", [1 / 10, 1 / 10, 0.0, 1 / 10]),
        ("sequence_mean", [1 / 6, 1 / 9, 0.0, 1 / 15]),
        ("sequence_sum", [1 / 3, 1 / 3, 0.0, 1 / 3]),
        ("group", [1 / 10, 1 / 10, 0.0, 1 / 10]),
        ("constant", [1 / 30, 1 / 30, 0.0, 1 / 30]),
    ],
)
def test_weights_by_hand(normaliser: Any, expected: list[float]) -> None:
    """Two, three, no and five tokens; the third rollout is a group of its own and counts nowhere."""
    rollouts = [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    assert token_weights([2, 3, 0, 5], rollouts, normaliser, 10) == pytest.approx(expected)


@pytest.mark.parametrize("normaliser", ["token", "sequence_mean", "sequence_sum", "group", "constant"])
def test_a_rollout_weighs_the_same_into_however_many_branches_it_parted(normaliser: Any) -> None:
    whole = token_weights([2, 8], [("a", 0), ("a", 1)], normaliser, 10)
    parted = token_weights([2, 3, 5], [("a", 0), ("a", 1), ("a", 1)], normaliser, 10)
    assert parted == pytest.approx([whole[0], whole[1], whole[1]])


def test_no_tokens_weigh_nothing_and_a_constant_needs_a_number() -> None:
    assert token_weights([0], [("a", 0)], "group") == [0.0]
    with pytest.raises(ValueError, match="constant"):
        token_weights([1], [("a", 0)], "constant")


def test_the_constant_is_what_a_rollout_may_generate_unless_the_config_has_a_number() -> None:
    row = Row([-1.0, -1.0], [-1.0, -1.0], [1.0, 1.0])
    assert evaluate(configured({"type": "dr_grpo"}), [row])[0] == pytest.approx(-2 / 7)  # sampling.max_tokens is 7
    assert evaluate(configured({"type": "dr_grpo"}, constant_length=4), [row])[0] == pytest.approx(-2 / 4)


@pytest.mark.parametrize("against", ["inference", "old"])
@pytest.mark.parametrize(("loss", "args"), [GRPO, GSPO, AIPO, ({"type": "cispo"}, {}), ({"type": "sapo"}, {})])
def test_ratios_are_against_the_engine_or_the_start_of_the_step(
    loss: dict[str, Any], args: dict[str, Any], against: str
) -> None:
    assert_equals_the_reference(loss, args, random_rows(seed=1), ranks=2, seq_len=16, ratio_against=against)


@pytest.mark.parametrize(("loss", "args"), [GRPO, AIPO, ({"type": "rloo"}, {})])
@pytest.mark.parametrize("cap", [{"corrections__token_cap": 1.1}, {"corrections__sequence_cap": 1.3}])
def test_truncated_importance_sampling(loss: dict[str, Any], args: dict[str, Any], cap: dict[str, float]) -> None:
    rows = [*random_rows(seed=2), Row([-1.0, -200.0, -1.0], [-200.0, -1.0, -2.0], [1.0] * 3, [-1.0] * 3)]
    assert_equals_the_reference(loss, args, rows, ranks=2, seq_len=16, ratio_against="old", **cap)


@pytest.mark.parametrize(("loss", "args"), [GRPO, GSPO, AIPO])
@pytest.mark.parametrize(
    "masks",
    [
        {"corrections__geometric_low": 0.95},
        {"corrections__geometric_high": 1.05},
        {"corrections__geometric_low": 0.9, "corrections__geometric_high": 1.1},
        {"corrections__max_divergence": 0.55},
        {"corrections__max_divergence": 0.5, "corrections__geometric_high": 1.02},
    ],
)
def test_rollouts_out_of_bounds_are_dropped_and_stay_in_the_denominator(
    loss: dict[str, Any], args: dict[str, Any], masks: dict[str, float]
) -> None:
    rows = [*random_rows(seed=3), Row([200.0, -200.0], [-1.0, -1.0], [1.0] * 2, [-1.0] * 2)]
    assert_equals_the_reference(loss, args, rows, ranks=2, seq_len=16, **masks)
    _, gradient, sums = evaluate(configured(loss, **masks), rows)
    assert 0 < sums["masked_fraction"] < sum(len(row.pi) for row in rows)
    assert gradient[-2:].tolist() == [0.0, 0.0]


def test_the_penalty_of_dppo_holds_on_rollouts_that_a_correction_drops() -> None:
    loss, args = {"type": "dppo", "kl_tau": 0.3}, {"kl_tau": 0.3}
    rows = random_rows(seed=21)
    masks = {"corrections__max_divergence": 0.01}
    assert_equals_the_reference(loss, args, rows, ranks=2, seq_len=16, **masks)
    _, gradient, sums = evaluate(configured(loss, **masks), rows)
    tokens = sum(len(row.pi) for row in rows)
    assert sums["masked_fraction"] == tokens
    logs = [pi - mu for row in rows for pi, mu in zip(row.pi, row.mu, strict=True)]
    np.testing.assert_allclose(gradient[gradient != 0], [0.6 * log / tokens for log in logs], rtol=1e-6)


def test_how_much_was_corrected_is_measured() -> None:
    rows = [Row([-1.0, -1.0], [-1.0, -3.0], [1.0, 1.0]), Row([-1.0], [-1.0], [1.0])]
    capped = configured({"type": "grpo"}, ratio_against="old", corrections__token_cap=2.0)
    assert evaluate(capped, rows)[2]["truncated_fraction"] == 1
    masked = configured({"type": "grpo"}, corrections__max_divergence=1.0)
    sums = evaluate(masked, rows)[2]
    assert sums["masked_fraction"] == 2
    assert sums["mismatch_kl"] == pytest.approx(math.exp(2) - 3)


@pytest.mark.parametrize("normaliser", ["token", "sequence_mean", "group"])
@pytest.mark.parametrize(("loss", "args"), [GRPO, ({"type": "dppo"}, {})])
def test_terms_are_normalised_over_what_they_are_about(
    loss: dict[str, Any], args: dict[str, Any], normaliser: str
) -> None:
    far = Row([-200.0, -0.5, -1.0], [-1.0, -200.0, -1.0], [1.0] * 3, [-0.5, -200.0, -3.0])
    rows = [*random_rows(seed=4, echo=True), far]
    some = [replace(row, ref=None) if index % 3 == 0 else row for index, row in enumerate(rows)]
    each = {"terms__echo": 0.1, "terms__reference_kl": 0.04}
    assert_equals_the_reference(loss, args, rows, normaliser, ranks=2, seq_len=20, **each)
    assert_equals_the_reference(
        loss, args, some, normaliser, ranks=3, seq_len=20, terms__distillation=0.5, terms__echo=0.1
    )


def test_terms_are_not_corrected() -> None:
    rows = random_rows(seed=12, echo=True)
    masks = {"corrections__max_divergence": 0.01}
    _, gradient, sums = evaluate(configured({"type": "grpo"}, terms__distillation=1.0, **masks), rows)
    assert sums["masked_fraction"] == sum(len(row.pi) for row in rows)
    assert np.count_nonzero(gradient) == sum(len(row.pi) for row in rows)


def test_what_terms_show_does_not_depend_on_their_weight() -> None:
    rows = [Row([-1.0, -2.0], [-1.0, -2.0], [1.0, 1.0], [-2.0, -2.0], [-3.0, -5.0])]
    for weight in (0.1, 3.0):
        terms = {"terms__echo": weight, "terms__reference_kl": weight, "terms__distillation": weight}
        sums = evaluate(configured({"type": "aipo"}, **terms), rows)[2]
        assert sums["echo_loss"] == pytest.approx(4.0)
        assert sums["distillation_kl"] == pytest.approx(0.5)
        assert sums["reference_kl"] == pytest.approx((math.exp(-1) + 1 - 1) / 2)


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ({"loss": {"type": "distill"}}, "algorithm.loss.type"),
        ({"loss": {"type": "grpo"}, "terms__reference_kl": 0.1}, "algorithm.terms.reference_kl"),
        (
            {"loss": {"type": "custom", "path": "math.exp", "needs_reference": True}},
            "algorithm.loss.needs_reference",
        ),
    ],
)
def test_a_batch_without_the_reference_logprobs_that_are_needed_is_refused(algorithm: dict[str, Any], key: str) -> None:
    with pytest.raises(DataError, match=key):
        evaluate(configured(**algorithm), random_rows(seed=13, ref=False))
