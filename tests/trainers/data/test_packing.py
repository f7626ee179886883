"""Packing: nothing lost, nothing twice, nothing too long, the same number of micro-batches everywhere."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.packing import (
    TokenWeights,
    batch_sequences,
    count_cut,
    count_trained,
    micro_batch,
    pack,
    plan_micro_batches,
    training_sequence,
)
from trainers.wire import TrainingBatch, TrainingRollout

lengths = st.lists(st.integers(1, 64), max_size=60)
ranks = st.integers(1, 5)


@given(lengths, st.integers(64, 128), ranks)
def test_every_sequence_is_in_one_bin_and_no_bin_is_too_long(lengths: list[int], seq_len: int, ranks: int) -> None:
    plan = plan_micro_batches(lengths, seq_len, ranks)
    bins = [bin_ for rank in plan for bin_ in rank]
    assert sorted(index for bin_ in bins for index in bin_) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in bin_) <= seq_len for bin_ in bins)


@given(lengths, ranks)
def test_every_rank_gets_the_same_number_of_micro_batches_and_at_least_one(lengths: list[int], ranks: int) -> None:
    counts = {len(bins) for bins in plan_micro_batches(lengths, 64, ranks)}
    assert len(counts) == 1
    assert counts.pop() >= 1


@given(lengths)
def test_no_two_bins_of_one_rank_would_fit_into_one(lengths: list[int]) -> None:
    (bins,) = plan_micro_batches(lengths, 64, 1)
    sizes = sorted(sum(lengths[index] for index in bin_) for bin_ in bins)
    assert len(sizes) < 2 or sizes[0] + sizes[1] > 64


def test_bins_are_split_rather_than_padded_with_dummies() -> None:
    plan = plan_micro_batches([10, 10, 10, 10], seq_len=40, ranks=2)
    assert [sorted(map(len, bins)) for bins in plan] == [[2], [2]]


def test_work_is_balanced_over_ranks() -> None:
    lengths = [1000, 900, 100, 600, 700]
    loads = [sum(lengths[index] for bin_ in bins for index in bin_) for bins in plan_micro_batches(lengths, 1000, 2)]
    assert sorted(loads) == [1600, 1700]


def test_a_length_over_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.\.8"):
        plan_micro_batches([9], 8, 1)


@st.composite
def random_sequences(draw: st.DrawFn) -> list[tuple[np.ndarray, np.ndarray]]:
    sizes = draw(st.lists(st.integers(1, 40), max_size=20))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    return [(rng.integers(0, 2**31 - 1, size), rng.integers(0, 2, size).astype(np.uint8)) for size in sizes]


@given(random_sequences(), ranks, st.integers(8, 64))
def test_every_trained_token_is_trained_once_with_its_own_numbers(
    raw: list[tuple[np.ndarray, np.ndarray]], ranks: int, seq_len: int
) -> None:
    sequences = [
        training_sequence(ids, mask, seq_len, np.arange(len(ids), dtype=np.float32) + 100 * index, float(index))
        for index, (ids, mask) in enumerate(raw)
    ]
    batches = [batch for rank in range(ranks) for batch in pack(sequences, seq_len, rank, ranks)]
    got = sorted(
        zip(
            torch.cat([batch.advantages_K for batch in batches]).tolist(),
            torch.cat([batch.inference_logprobs_K for batch in batches]).tolist(),
            torch.cat([batch.targets_K for batch in batches]).tolist(),
            strict=True,
        )
    )
    expected = [
        (float(index), float(at + 100 * index), int(ids[at]))
        for index, (ids, mask) in enumerate(raw)
        for at in range(1, min(len(ids), seq_len))
        if mask[at]
    ]
    assert got == sorted(expected)
    assert len(got) == count_trained(sequences)
    for batch in batches:
        assert len(batch.token_ids_N) == sum(batch.lengths_S) <= max(seq_len, 1)
        assert (batch.token_ids_N[batch.predicts_K + 1] == batch.targets_K).all()
        assert (batch.position_ids_N[batch.predicts_K + 1] == batch.position_ids_N[batch.predicts_K] + 1).all()


def test_positions_restart_with_every_sequence() -> None:
    sequences = [training_sequence(np.arange(size), np.ones(size, np.uint8), 8) for size in (2, 3)]
    assert micro_batch(sequences).position_ids_N.tolist() == [0, 1, 2, 0, 1]


def test_the_dummy_trains_nothing() -> None:
    batch = micro_batch([])
    assert (len(batch.token_ids_N), len(batch.predicts_K)) == (1, 0)


def rollout(tokens: int, mask: list[int]) -> TrainingRollout:
    return TrainingRollout(
        group="g",
        index=3,
        environment="e",
        problem_key="p",
        token_ids=np.arange(tokens, dtype="<u4").tobytes(),
        loss_mask=bytes(mask),
        inference_logprobs=np.zeros(tokens, "<f4").tobytes(),
        advantage=0.5,
        reward=1.0,
        min_policy_version=0,
        max_policy_version=0,
    )


def test_wire_arrays_are_decoded_and_rollouts_without_trained_tokens_are_left_out() -> None:
    batch = TrainingBatch(
        run="r", step=0, temperature=1.0, rollouts=[rollout(3, [0, 1, 1]), rollout(2, [0, 0]), rollout(2, [1, 0])]
    )
    (sequence,) = batch_sequences(batch, 8)
    assert sequence.token_ids_T.tolist() == [0, 1, 2]
    assert sequence.trained_T.tolist() == [False, True, True]
    assert sequence.advantage == 0.5


def test_rollouts_with_a_branch_that_is_longer_than_a_micro_batch_are_counted() -> None:
    branched = msgspec.structs.replace(rollout(6, [0, 1] * 3), branch_lengths=[2, 4])
    batch = TrainingBatch(
        run="r", step=0, temperature=1.0, rollouts=[rollout(3, [0, 1, 1]), rollout(4, [0] * 4), branched]
    )
    assert [count_cut(batch, seq_len) for seq_len in (2, 3, 4)] == [3, 2, 0]


def test_arrays_of_different_lengths_are_refused_by_name() -> None:
    batch = TrainingBatch(run="r", step=0, temperature=1.0, rollouts=[rollout(3, [0, 1])])
    with pytest.raises(ValueError, match="rollout 3 of group g"):
        batch_sequences(batch, 8)


def test_echo_is_what_others_say_after_the_policys_first_token_and_comes_last() -> None:
    mask = np.array([0, 0, 1, 1, 0, 0, 1, 0])
    sequence = training_sequence(np.arange(10, 18), mask, 7, echo=True)
    assert sequence.echo_T is not None
    assert sequence.echo_T.tolist() == [False, False, False, False, True, True, False]
    batch = micro_batch([replace(sequence, weights=TokenWeights(1.0, 2.0, 3.0))])
    assert batch.targets_K.tolist() == [12, 13, 16, 14, 15]
    assert batch.trained_tokens == 3
    assert count_trained([sequence]) == 3


def test_what_the_environment_sent_per_token_goes_with_its_token() -> None:
    sent = rollout(4, [0, 1, 1, 1])
    sent = msgspec.structs.replace(
        sent,
        advantages=np.array([9, 1, -2, 0.5], "<f4").tobytes(),
        ref_logprobs=np.array([0, -1, -2, -3], "<f4").tobytes(),
    )
    plain = rollout(3, [0, 1, 1])
    batch = micro_batch(batch_sequences(TrainingBatch(run="r", step=0, temperature=1.0, rollouts=[plain, sent]), 8))
    assert batch.advantages_K.tolist() == [1.0, -2.0, 0.5, 0.5, 0.5], "in place of the rollout's, which is .5"
    assert batch.ref_logprobs_K.tolist() == [-1.0, -2.0, -3.0, 0.0, 0.0]
    assert batch.sequence_K.tolist() == [0, 0, 0, 1, 1]


def test_per_token_arrays_of_another_length_are_refused() -> None:
    torn = msgspec.structs.replace(rollout(3, [0, 1, 1]), advantages=np.zeros(2, "<f4").tobytes())
    with pytest.raises(ValueError, match="3 tokens, 2 advantages"):
        batch_sequences(TrainingBatch(run="r", step=0, temperature=1.0, rollouts=[torn]), 8)
