"""Pack the sequences of one optimizer step into micro-batches, the same number on every rank.

    lengths -> bins of at most seq_len tokens (first fit, longest first)
            -> a number of bins that divides by the ranks (split the heaviest, then add empty ones)
            -> bins to ranks, equal counts, balanced cost
            -> one flat MicroBatch per bin; attention never crosses from one sequence to the next

Every rank computes the same plan from the same batch, so nothing has to be exchanged. Equal counts matter: a rank that
runs out of micro-batches would leave the others waiting in a collective for ever.

Shapes: T tokens of one sequence, N tokens of one micro-batch, S sequences of it, K trained tokens of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainers.wire import TrainingBatch

Bin = list[int]
"""Indices of the sequences that share a micro-batch; empty for a dummy."""

_ATTENTION_COST = 1 / 4096
"""Cost of attention per squared token, relative to everything else per token. Only the balance depends on it."""


@dataclass(frozen=True)
class TrainingSequence:
    """One sequence to train on, at most seq_len tokens long. Make it with `training_sequence`."""

    token_ids_T: np.ndarray
    """int64."""
    trained_T: np.ndarray
    """bool; True where the token's logprob enters the loss."""
    inference_logprobs_T: np.ndarray
    """float32; 0 where not trained."""
    advantage: float


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward pass."""

    token_ids_N: torch.Tensor
    """int64."""
    position_ids_N: torch.Tensor
    """int64; restarts at 0 with every sequence."""
    lengths_S: list[int]
    """Tokens of each sequence, longest first; they add up to N."""
    predicts_K: torch.Tensor
    """int64; positions whose logits predict the trained tokens, that is, one before each of them."""
    targets_K: torch.Tensor
    """int64; the trained tokens."""
    inference_logprobs_K: torch.Tensor
    """float32."""
    advantages_K: torch.Tensor
    """float32."""

    def to(self, device: torch.device) -> "MicroBatch":
        """Copy to a device; a no-op on CPU."""
        return MicroBatch(
            token_ids_N=self.token_ids_N.to(device),
            position_ids_N=self.position_ids_N.to(device),
            lengths_S=self.lengths_S,
            predicts_K=self.predicts_K.to(device),
            targets_K=self.targets_K.to(device),
            inference_logprobs_K=self.inference_logprobs_K.to(device),
            advantages_K=self.advantages_K.to(device),
        )


def training_sequence(
    token_ids_T: np.ndarray,
    loss_mask_T: np.ndarray,
    seq_len: int,
    inference_logprobs_T: np.ndarray | None = None,
    advantage: float = 0.0,
) -> TrainingSequence:
    """Cut to `seq_len` and leave the first token out of the loss: nothing comes before it to predict it from."""
    trained_T = loss_mask_T[:seq_len].astype(bool)
    trained_T[:1] = False
    if inference_logprobs_T is None:
        inference_logprobs_T = np.zeros(len(token_ids_T), np.float32)
    return TrainingSequence(
        token_ids_T=token_ids_T[:seq_len].astype(np.int64),
        trained_T=trained_T,
        inference_logprobs_T=inference_logprobs_T[:seq_len].astype(np.float32),
        advantage=advantage,
    )


def batch_sequences(batch: TrainingBatch, seq_len: int) -> list[TrainingSequence]:
    """Decode the rollouts of a batch. Rollouts with nothing to train are left out. Raises ValueError on torn arrays."""
    sequences = []
    for rollout in batch.rollouts:
        token_ids = np.frombuffer(rollout.token_ids, "<u4")
        loss_mask = np.frombuffer(rollout.loss_mask, np.uint8)
        logprobs = np.frombuffer(rollout.inference_logprobs, "<f4")
        if not len(token_ids) == len(loss_mask) == len(logprobs):
            where = f"rollout {rollout.index} of group {rollout.group}"
            raise ValueError(f"{where} has {len(token_ids)} tokens, {len(loss_mask)} masks, {len(logprobs)} logprobs")
        sequence = training_sequence(token_ids, loss_mask, seq_len, logprobs, rollout.advantage)
        if sequence.trained_T.any():
            sequences.append(sequence)
    return sequences


def count_trained(sequences: Iterable[TrainingSequence]) -> int:
    """Trained tokens: over a whole batch this is the denominator N of a token-level loss."""
    return sum(int(sequence.trained_T.sum()) for sequence in sequences)


def plan_micro_batches(lengths: Sequence[int], seq_len: int, ranks: int) -> list[list[Bin]]:
    """Decide which sequences share a micro-batch and which rank gets it: `plan[rank]` is that rank's bins.

    Every sequence is in exactly one bin, every bin has at most `seq_len` tokens, every rank the same number of bins
    and at least one. Lengths must be in 1..seq_len.
    """
    if any(not 1 <= length <= seq_len for length in lengths):
        raise ValueError(f"lengths must be in 1..{seq_len}")
    bins = _first_fit_decreasing(lengths, seq_len)
    while len(bins) % ranks:
        heaviest = max((bin_ for bin_ in bins if len(bin_) > 1), key=lambda bin_: _cost(bin_, lengths), default=None)
        if heaviest is None:
            break
        bins.remove(heaviest)
        bins += _halve(heaviest, lengths)
    bins += [[] for _ in range(-len(bins) % ranks if bins else ranks)]
    return _deal(bins, lengths, ranks)


def _first_fit_decreasing(lengths: Sequence[int], seq_len: int) -> list[Bin]:
    bins: list[Bin] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        for place, free in enumerate(room):
            if length <= free:
                bins[place].append(index)
                room[place] -= length
                break
        else:
            bins.append([index])
            room.append(seq_len - length)
    return bins


def _cost(bin_: Bin, lengths: Sequence[int]) -> float:
    return sum(lengths[index] + _ATTENTION_COST * lengths[index] ** 2 for index in bin_)


def _halve(bin_: Bin, lengths: Sequence[int]) -> tuple[Bin, Bin]:
    """Two bins of about equal cost; the members come longest first."""
    halves: tuple[Bin, Bin] = ([], [])
    for index in bin_:
        min(halves, key=lambda half: _cost(half, lengths)).append(index)
    return halves


def _deal(bins: list[Bin], lengths: Sequence[int], ranks: int) -> list[list[Bin]]:
    """Costliest bin first, to the rank with the least work among those that still need bins."""
    per_rank = len(bins) // ranks
    plan: list[list[Bin]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for bin_ in sorted(bins, key=lambda bin_: -_cost(bin_, lengths)):
        rank = min((rank for rank in range(ranks) if len(plan[rank]) < per_rank), key=lambda rank: load[rank])
        plan[rank].append(bin_)
        load[rank] += _cost(bin_, lengths)
    return plan


def micro_batch(sequences: Sequence[TrainingSequence]) -> MicroBatch:
    """Lay sequences end to end, longest first.

    No sequences: a dummy of one token that trains nothing but keeps this rank in step with the others' collectives.
    """
    if not sequences:
        nothing = np.zeros(1, np.int64)
        sequences = [TrainingSequence(nothing, nothing.astype(bool), nothing.astype(np.float32), 0.0)]
    sequences = sorted(sequences, key=lambda sequence: -len(sequence.token_ids_T))
    lengths_S = [len(sequence.token_ids_T) for sequence in sequences]
    token_ids_N = np.concatenate([sequence.token_ids_T for sequence in sequences])
    trained_N = np.concatenate([sequence.trained_T for sequence in sequences])
    logprobs_N = np.concatenate([sequence.inference_logprobs_T for sequence in sequences])
    advantages_S = np.array([sequence.advantage for sequence in sequences], np.float32)
    (at_K,) = np.nonzero(trained_N)
    return MicroBatch(
        token_ids_N=torch.from_numpy(token_ids_N),
        position_ids_N=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths_S])),
        lengths_S=lengths_S,
        predicts_K=torch.from_numpy(at_K - 1),
        targets_K=torch.from_numpy(token_ids_N[at_K]),
        inference_logprobs_K=torch.from_numpy(logprobs_N[at_K]),
        advantages_K=torch.from_numpy(np.repeat(advantages_S, lengths_S)[at_K]),
    )


def pack(sequences: Sequence[TrainingSequence], seq_len: int, rank: int, ranks: int) -> list[MicroBatch]:
    """The micro-batches of one rank; together the ranks hold every sequence once."""
    plan = plan_micro_batches([len(sequence.token_ids_T) for sequence in sequences], seq_len, ranks)
    return [micro_batch([sequences[index] for index in bin_]) for bin_ in plan[rank]]
