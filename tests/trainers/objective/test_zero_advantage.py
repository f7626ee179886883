"""Which groups have no gradient although nothing about them is broken: what the config says, against the gradient."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.trainers.objective.objectives import evaluate, random_rows, with_advantages
from tests.trainers.objective.test_losses import CASES, names
from trainers.config import resolve
from trainers.objective.step import rl_objective

TERMS: list[dict[str, Any]] = [{}, {"echo": 0.1}, {"reference_kl": 0.1}, {"distillation": 0.1}]
CORRECTIONS: list[dict[str, Any]] = [{}, {"max_divergence": 0.55}, {"geometric_high": 1.2}]
LOSSES = [*(loss for loss, _ in CASES), {"type": "dppo", "kl_tau": 0.0}]


@pytest.mark.parametrize("loss", LOSSES, ids=names)
def test_the_config_knows_exactly_when_a_group_of_zero_advantages_has_no_gradient(loss: dict[str, Any]) -> None:
    base = {"max_steps": 1, "model.path": "m", "environments": [{"name": "reverse_text"}]}
    found = set()
    for terms in TERMS:
        if loss["type"] == "distill" and terms.get("distillation"):
            continue
        for corrections in CORRECTIONS:
            algorithm = {"loss": loss, "terms": terms, "corrections": corrections}
            config = resolve(overrides=base, inline={"algorithm": algorithm}).config
            needs = loss["type"] == "distill" or "reference_kl" in terms
            for has_reference in (True,) if needs else (True, False):
                for has_echo in (True, False):
                    rows = random_rows(seed=3, ref=has_reference, echo=has_echo)
                    rows = [with_advantages(row, [0.0] * len(row.pi)) for row in rows]
                    if has_echo:
                        rows = [replace(row, echo=[*row.echo, -1.0]) for row in rows]
                    _, gradient, _ = evaluate(rl_objective(config), rows)
                    key = config.algorithm.gradient_without_advantage(has_reference=has_reference, has_echo=has_echo)
                    assert bool(key) == bool(np.any(gradient)), (terms, corrections, has_reference, has_echo, key)
                    found.add(key)
    assert "terms.reference_kl" in found or found & {"loss.type", "loss.kl_tau"}


def test_nobody_knows_the_gradient_of_a_custom_loss() -> None:
    base = {"max_steps": 1, "model.path": "m", "environments": [{"name": "reverse_text"}]}
    custom = {"algorithm.loss": {"type": "custom", "path": "a.b"}}
    algorithm = resolve(overrides=base | custom).config.algorithm
    assert algorithm.gradient_without_advantage(has_reference=False, has_echo=False) == "loss.type"
