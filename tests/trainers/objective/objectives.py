"""Batches for tests of objectives, and an objective of ours evaluated on them as a trainer would, but in float64."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainers.objective import reference_objectives as reference
from tests.trainers.objective.reference_objectives import Row
from trainers.config import resolve
from trainers.objective.step import Objective, rl_objective
from trainers.packing import MicroBatch, TrainingSequence, pack, training_sequence

NORMALISERS = {
    "aipo": "token",
    "cispo": "token",
    "cross_entropy": "token",
    "dapo": "token",
    "distill": "token",
    "dppo": "token",
    "dr_grpo": "constant",
    "grpo": "sequence_mean",
    "gspo": "sequence_mean",
    "gspo_token": "sequence_mean",
    "masked_is": "token",
    "opo": "token",
    "rloo": "sequence_sum",
    "sapo": "sequence_mean",
}
"""Defaults, by loss."""
PROMPT = 2
"""Tokens before the first that is trained."""


def configured(loss: dict[str, Any], **algorithm: Any) -> Objective:
    """The objective of a run config with this loss; keywords are keys of `algorithm` with `__` for the dot."""
    base = {"max_steps": 1, "model.path": "m", "environments": [{"name": "reverse_text"}], "sampling.max_tokens": 7}
    more = {f"algorithm.{key.replace('__', '.')}": value for key, value in algorithm.items()}
    return rl_objective(resolve(overrides=base | {"algorithm.loss": loss} | more).config)


def random_rows(seed: int, rows: int = 9, *, spread: float = 0.6, echo: bool = False, ref: bool = True) -> list[Row]:
    """Rollouts of one to twelve tokens in groups of three, with numbers that float32 holds exactly."""
    rng = np.random.default_rng(seed)

    def floats(size: int, low: float, high: float) -> list[float]:
        return [float(value) for value in rng.uniform(low, high, size).astype(np.float32)]

    made = []
    for index in range(rows):
        size = int(rng.integers(1, 13))
        mu = floats(size, -3, -0.1)
        shift = floats(size, -spread, spread)
        pi = [float(np.float32(a + b)) for a, b in zip(mu, shift, strict=True)]
        advantage = floats(1, -2, 2)[0]
        made.append(
            Row(
                pi,
                mu,
                [advantage] * size,
                floats(size, -3, -0.1) if ref else None,
                floats(int(rng.integers(0, 4)), -3, -0.1) if echo else [],
                f"g{index // 3}",
            )
        )
    return made


def sequences_of(rows: Sequence[Row], *, token_advantages: bool = False) -> list[TrainingSequence]:
    """The rows as a trainer packs them. Token ids count through the batch, so that a target names its token."""
    made, first = [], 0
    for index, row in enumerate(rows):
        size = PROMPT + len(row.pi) + len(row.echo)
        mask = np.zeros(size, np.uint8)
        mask[PROMPT : PROMPT + len(row.pi)] = 1

        def stream(values: Sequence[float], size: int = size) -> np.ndarray:
            array = np.zeros(size, np.float32)
            array[PROMPT : PROMPT + len(values)] = values
            return array

        made.append(
            training_sequence(
                np.arange(first, first + size),
                mask,
                64,
                stream(row.mu),
                row.advantages[0] if row.advantages else 0.0,
                advantages_T=stream(row.advantages) if token_advantages else None,
                ref_logprobs_T=None if row.ref is None else stream(row.ref),
                echo=any(each.echo for each in rows),
                group=row.group,
                index=index,
            )
        )
        first += size
    return made


def evaluate(
    objective: Objective,
    rows: Sequence[Row],
    *,
    ranks: int = 1,
    seq_len: int = 64,
    dtype: torch.dtype = torch.float64,
    token_advantages: bool = False,
) -> tuple[float, np.ndarray, dict[str, float]]:
    """Value, gradient by the logprobs of all tokens of the batch in order, and sums of metrics, over all ranks."""
    logprobs = torch.tensor(
        [value for row in rows for value in [*[0.0] * PROMPT, *row.pi, *row.echo]], dtype=dtype, requires_grad=True
    )
    prepared = objective.prepare(sequences_of(rows, token_advantages=token_advantages))
    total, sums = 0.0, dict[str, float]()
    for rank in range(ranks):
        for batch in pack(prepared, seq_len, rank, ranks):
            evaluated = objective(_cast(batch, dtype), logprobs[batch.targets_K])
            evaluated.loss.backward()  # type: ignore[no-untyped-call]
            total += evaluated.loss.item()
            for name, value in (evaluated.metric_sums | evaluated.parts).items():
                sums[name] = sums.get(name, 0.0) + value.item()
    assert logprobs.grad is not None
    return total, logprobs.grad.numpy(), sums


def flat(rows: Sequence[Row], gradient: Sequence[Sequence[float]], echo: Sequence[Sequence[float]]) -> np.ndarray:
    """Gradients per row, laid out like those of `evaluate`."""
    parts = zip(gradient, echo, strict=True)
    return np.array([value for own, more in parts for value in [*[0.0] * PROMPT, *own, *more]])


def with_advantages(row: Row, advantages: Sequence[float]) -> Row:
    """The same rollout, other advantages."""
    return replace(row, advantages=list(advantages))


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
    """Evaluate a configured objective over ranks and micro-batches, and compare it with the loops."""
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


def _cast(batch: MicroBatch, dtype: torch.dtype) -> MicroBatch:
    values = {each.name: getattr(batch, each.name) for each in fields(batch)}
    floats: dict[str, Any] = {
        name: value.to(dtype)
        for name, value in values.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    return replace(batch, **floats)
