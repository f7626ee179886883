"""DPO against the formula in float64: values, gradients, and what training by coefficients makes of a model."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from trainers.distributed.mesh import World
from trainers.losses.dpo import preferences
from trainers.model.policy import load_policy, score_tokens
from trainers.model.scoring import sequence_logprobs
from trainers.packing import TrainingSequence, count_trained, micro_batch, training_sequence
from trainers.run_config import ModelConfig
from trainers.supervised import PUSHED

logprobs = st.floats(-500, 0)
pairs = st.lists(st.tuples(logprobs, logprobs, logprobs, logprobs), min_size=1, max_size=8)


def columns(rows: list[tuple[float, float, float, float]]) -> list[np.ndarray]:
    return [np.array(column) for column in zip(*rows, strict=True)]


@given(pairs, st.floats(0.01, 2))
def test_dpo_equals_the_formula_in_value_and_gradient(
    rows: list[tuple[float, float, float, float]], beta: float
) -> None:
    chosen, rejected, ref_chosen, ref_rejected = (torch.tensor(c, requires_grad=True) for c in columns(rows))
    expected = -torch.nn.functional.logsigmoid(beta * ((chosen - ref_chosen) - (rejected - ref_rejected))).mean()
    expected.backward()
    seen = preferences(*columns(rows), beta)
    assert seen.losses_P.mean() == pytest.approx(expected.item(), rel=1e-9, abs=1e-300)
    assert chosen.grad is not None
    assert rejected.grad is not None
    np.testing.assert_allclose(-seen.weights_P, chosen.grad.numpy(), rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(seen.weights_P, rejected.grad.numpy(), rtol=1e-9, atol=1e-300)


def test_dpo_by_hand() -> None:
    """Rewards .1 (2, -1) and .1 (1, 1): margins .3 and 0."""
    chosen, rejected, reference = np.array([-3.0, -4.0]), np.array([-6.0, -4.0]), np.array([-5.0, -5.0])
    seen = preferences(chosen, rejected, reference, reference, 0.1)
    assert seen.chosen_rewards_P.tolist() == pytest.approx([0.2, 0.1])
    assert seen.rejected_rewards_P.tolist() == pytest.approx([-0.1, 0.1])
    assert seen.losses_P.tolist() == pytest.approx([math.log(1 + math.exp(-0.3)), math.log(2)])
    assert seen.weights_P.tolist() == pytest.approx([0.05 / (1 + math.exp(0.3)), 0.05 / 2])
    assert seen.sums() == pytest.approx(
        {"loss": seen.losses_P.sum(), "accuracy": 1, "margin": 0.3, "chosen_reward": 0.3, "rejected_reward": 0.0}
    )


@pytest.mark.parametrize("margin", [1e4, -1e4, 0.0])
def test_hopeless_margins_stay_finite(margin: float) -> None:
    zero = np.zeros(1)
    seen = preferences(np.array([margin]), zero, zero, zero, 1.0)
    assert np.isfinite([*seen.losses_P, *seen.weights_P]).all()


def test_no_pairs_give_zero() -> None:
    nothing = np.zeros(0)
    assert preferences(nothing, nothing, nothing, nothing, 0.1).sums()["loss"] == 0.0


def sequences_of(count: int) -> list[TrainingSequence]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 30, count)
    return [training_sequence(rng.integers(0, 256, size), np.arange(size) >= 4, 64) for size in lengths]


@pytest.mark.usefixtures("world")
def test_logprobs_of_sequences_are_those_of_the_model_alone(model_dir: Path, world: World) -> None:
    model = load_policy(ModelConfig(path=str(model_dir)), world)
    plain = AutoModelForCausalLM.from_pretrained(model_dir)
    sequences = sequences_of(9)
    found_S = sequence_logprobs(model, sequences, 64, world, torch.float32)
    for sequence, found in zip(sequences, found_S, strict=True):
        ids = torch.from_numpy(sequence.token_ids_T)
        logprobs_T = plain(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        expected = logprobs_T[torch.from_numpy(sequence.trained_T[1:])].sum().item()
        assert found == pytest.approx(expected, rel=1e-4)
    assert model.training
    assert sequence_logprobs(model, [], 64, world, torch.float32).tolist() == []


def test_pushing_tokens_is_the_gradient_of_the_loss_of_pairs(model_dir: Path, world: World) -> None:
    """The whole path, packed and pushed, against autograd through the formula on unpacked sequences."""
    beta, sequences = 0.3, sequences_of(6)
    model = load_policy(ModelConfig(path=str(model_dir)), world)
    plain = AutoModelForCausalLM.from_pretrained(model_dir)
    reference_S = np.linspace(-80, -70, 6)

    policy_S = sequence_logprobs(model, sequences, 64, world, torch.float32)
    seen = preferences(policy_S[::2], policy_S[1::2], reference_S[::2], reference_S[1::2], beta)
    signed_S = np.stack([seen.weights_P, -seen.weights_P], axis=1).ravel()
    signed_S *= count_trained(sequences)
    pushed = PUSHED.prepare(
        [replace(each, advantage=float(weight)) for each, weight in zip(sequences, signed_S, strict=True)]
    )
    for part in (pushed[:1], pushed[1:]):  # the answers of the first pair are apart
        batch = micro_batch(part)
        PUSHED(batch, score_tokens(model, batch, 1.0).logprobs_K).loss.backward()

    sums = []
    for sequence in sequences:
        ids = torch.from_numpy(sequence.token_ids_T)
        logprobs_T = plain(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        sums.append(logprobs_T[torch.from_numpy(sequence.trained_T[1:])].sum())
    rewards_S = beta * (torch.stack(sums) - torch.from_numpy(reference_S))
    loss = -torch.nn.functional.logsigmoid(rewards_S[::2] - rewards_S[1::2]).mean()
    loss.backward()
    assert seen.losses_P.mean() == pytest.approx(loss.item(), rel=1e-4)
    expected = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        ours = parameter.grad.full_tensor()  # type: ignore[union-attr]
        torch.testing.assert_close(ours, expected[name].grad, rtol=2e-3, atol=1e-5, msg=name)
