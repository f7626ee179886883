"""Pack the sequences of one optimizer step into micro-batches, the same number on every rank.

    lengths -> bins of at most seq_len tokens (first fit, longest first)
            -> a number of bins that divides by the ranks (split the heaviest, then add empty ones)
            -> bins to ranks, equal counts, balanced cost
            -> one flat MicroBatch per bin; attention never crosses from one sequence to the next

Every rank computes the same plan from the same batch, so nothing has to be exchanged. Equal counts matter: a rank that
runs out of micro-batches would leave the others waiting in a collective for ever.

Shapes: T tokens of one sequence, N tokens of one micro-batch, S sequences of it, K scored tokens of it: those that the
policy sampled, which are trained by the loss, and after them the echo tokens, if any.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch

from trainers.wire import TrainingBatch, TrainingRollout

Bin = list[int]
"""Indices of the sequences that share a micro-batch; empty for a dummy."""

RolloutKey = tuple[str, int]
"""A rollout's group and its position inside."""

_ATTENTION_COST = 1 / 4096
"""Cost of attention per squared token, relative to everything else per token. Only the balance depends on it."""


class TokenWeights(NamedTuple):
    """What one token of a sequence weighs in each part of the objective; `objective/normalisers.py` computes it."""

    policy: float = 0.0
    """Of a trained token in the loss."""
    reference: float = 0.0
    """Of a trained token in the terms on reference logprobs; 0 where there are none."""
    echo: float = 0.0
    """Of an echo token in the cross-entropy on what the environment said."""


_NOT_WEIGHED = TokenWeights()


@dataclass(frozen=True)
class TrainingSequence:
    """One sequence to train on, at most seq_len tokens long: a branch of a rollout, or an example.

    Make it with `training_sequence`.
    """

    token_ids_T: np.ndarray
    """int64."""
    trained_T: np.ndarray
    """bool; True where the token's logprob enters the loss."""
    inference_logprobs_T: np.ndarray
    """float32; 0 where not trained."""
    advantage: float
    """Of every token, unless there are `advantages_T`."""
    advantages_T: np.ndarray | None = None
    """float32; what the environment computed per token."""
    ref_logprobs_T: np.ndarray | None = None
    """float32; of a reference or teacher."""
    echo_T: np.ndarray | None = None
    """bool; True where the environment spoke after the policy's first token, if such tokens are trained."""
    group: str = ""
    """Which group it belongs to."""
    index: int = 0
    """Its rollout's position inside the group."""
    branch: int = 0
    """Its position inside the rollout."""
    weights: TokenWeights = _NOT_WEIGHED

    @property
    def rollout(self) -> RolloutKey:
        """Which rollout it belongs to."""
        return self.group, self.index


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
    """int64; positions whose logits predict the scored tokens, that is, one before each of them."""
    targets_K: torch.Tensor
    """int64; the scored tokens."""
    trained_tokens: int
    """How many of the K are trained by the loss: the first ones. The others are echo."""
    sequence_K: torch.Tensor
    """int64; which of the S sequences."""
    inference_logprobs_K: torch.Tensor
    """float32."""
    ref_logprobs_K: torch.Tensor
    """float32; 0 where there are none."""
    advantages_K: torch.Tensor
    """float32."""
    policy_weights_K: torch.Tensor
    """float64, so that sums over a large batch are too; see TokenWeights. This and the next mean the trained tokens,
    `echo_weights_K` the others."""
    reference_weights_K: torch.Tensor
    """float64."""
    echo_weights_K: torch.Tensor
    """float64."""
    sequences_S: Sequence[TrainingSequence] = ()
    """What was packed, in this order."""

    def to(self, device: torch.device) -> "MicroBatch":
        """Copy to a device; a no-op on CPU."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors: dict[str, Any] = {
            name: value.to(device) for name, value in values.items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **tensors)


def training_sequence(
    token_ids_T: np.ndarray,
    loss_mask_T: np.ndarray,
    seq_len: int,
    inference_logprobs_T: np.ndarray | None = None,
    advantage: float = 0.0,
    *,
    advantages_T: np.ndarray | None = None,
    ref_logprobs_T: np.ndarray | None = None,
    echo: bool = False,
    group: str = "",
    index: int = 0,
    branch: int = 0,
) -> TrainingSequence:
    """Cut to `seq_len` and leave the first token out of the loss: nothing comes before it to predict it from.

    `echo` also marks what was not sampled after the first token that was.
    """
    sampled_T = loss_mask_T[:seq_len].astype(bool)
    trained_T = sampled_T.copy()
    trained_T[:1] = False
    if inference_logprobs_T is None:
        inference_logprobs_T = np.zeros(len(token_ids_T), np.float32)
    return TrainingSequence(
        token_ids_T=token_ids_T[:seq_len].astype(np.int64),
        trained_T=trained_T,
        inference_logprobs_T=inference_logprobs_T[:seq_len].astype(np.float32),
        advantage=advantage,
        advantages_T=None if advantages_T is None else advantages_T[:seq_len].astype(np.float32),
        ref_logprobs_T=None if ref_logprobs_T is None else ref_logprobs_T[:seq_len].astype(np.float32),
        echo_T=np.logical_or.accumulate(sampled_T) & ~sampled_T if echo else None,
        group=group,
        index=index,
        branch=branch,
    )


def batch_sequences(batch: TrainingBatch, seq_len: int, *, echo: bool = False) -> list[TrainingSequence]:
    """Decode the rollouts of a batch, a sequence for each branch. What has nothing to train is left out.

    Raises ValueError on torn arrays.
    """
    sequences = []
    for rollout in batch.rollouts:
        token_ids = np.frombuffer(rollout.token_ids, "<u4")
        loss_mask = np.frombuffer(rollout.loss_mask, np.uint8)
        logprobs = np.frombuffer(rollout.inference_logprobs, "<f4")
        advantages = None if rollout.advantages is None else np.frombuffer(rollout.advantages, "<f4")
        reference = None if rollout.ref_logprobs is None else np.frombuffer(rollout.ref_logprobs, "<f4")
        arrays = {"masks": loss_mask, "logprobs": logprobs, "advantages": advantages, "reference logprobs": reference}
        torn = {name: array for name, array in arrays.items() if array is not None and len(array) != len(token_ids)}
        if torn:
            lengths = ", ".join(f"{len(array)} {name}" for name, array in torn.items())
            raise ValueError(f"rollout {rollout.index} of group {rollout.group} has {len(token_ids)} tokens, {lengths}")
        for branch, part in enumerate(branch_slices(rollout)):
            sequence = training_sequence(
                token_ids[part],
                loss_mask[part],
                seq_len,
                logprobs[part],
                rollout.advantage,
                advantages_T=None if advantages is None else advantages[part],
                ref_logprobs_T=None if reference is None else reference[part],
                echo=echo,
                group=rollout.group,
                index=rollout.index,
                branch=branch,
            )
            if sequence.trained_T.any():
                sequences.append(sequence)
    return sequences


def branch_slices(rollout: TrainingRollout) -> list[slice]:
    """Where each branch of a rollout lies in its arrays."""
    length = len(rollout.loss_mask)
    lengths = rollout.branch_lengths or [length]
    if sum(lengths) != length:
        where = f"rollout {rollout.index} of group {rollout.group}"
        raise ValueError(f"{where} has {length} tokens, and branches of {sum(lengths)}")
    ends = list(accumulate(lengths))
    return [slice(end - length, end) for length, end in zip(lengths, ends, strict=True)]


def count_cut(batch: TrainingBatch, seq_len: int) -> int:
    """Rollouts that are not trained whole: a branch of them is longer than `seq_len`."""
    return sum(any(part.stop - part.start > seq_len for part in branch_slices(rollout)) for rollout in batch.rollouts)


def count_rollouts(sequences: Iterable[TrainingSequence]) -> int:
    """Rollouts that the sequences are branches of."""
    return len({sequence.rollout for sequence in sequences})


def count_trained(sequences: Iterable[TrainingSequence]) -> int:
    """Trained tokens: over a whole batch this is what metrics of tokens are divided by."""
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
    echo_N = _concatenate([sequence.echo_T for sequence in sequences], lengths_S, bool)
    at_K = np.concatenate([np.flatnonzero(trained_N), np.flatnonzero(echo_N)])
    sequence_K = np.repeat(np.arange(len(sequences)), lengths_S)[at_K]
    logprobs_N = np.concatenate([sequence.inference_logprobs_T for sequence in sequences])
    ref_logprobs_N = _concatenate([sequence.ref_logprobs_T for sequence in sequences], lengths_S, np.float32)
    advantages_N = np.concatenate([_advantages(sequence) for sequence in sequences])
    weights_S = np.array([sequence.weights for sequence in sequences], np.float64)
    policy_weights_K, reference_weights_K, echo_weights_K = torch.from_numpy(weights_S[sequence_K]).unbind(dim=1)
    return MicroBatch(
        token_ids_N=torch.from_numpy(token_ids_N),
        position_ids_N=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths_S])),
        lengths_S=lengths_S,
        predicts_K=torch.from_numpy(at_K - 1),
        targets_K=torch.from_numpy(token_ids_N[at_K]),
        trained_tokens=int(trained_N.sum()),
        sequence_K=torch.from_numpy(sequence_K),
        inference_logprobs_K=torch.from_numpy(logprobs_N[at_K]),
        ref_logprobs_K=torch.from_numpy(ref_logprobs_N[at_K]),
        advantages_K=torch.from_numpy(advantages_N[at_K]),
        policy_weights_K=policy_weights_K,
        reference_weights_K=reference_weights_K,
        echo_weights_K=echo_weights_K,
        sequences_S=sequences,
    )


def _advantages(sequence: TrainingSequence) -> np.ndarray:
    if sequence.advantages_T is not None:
        return sequence.advantages_T
    return np.full(len(sequence.token_ids_T), sequence.advantage, np.float32)


def _concatenate(arrays: Sequence[np.ndarray | None], lengths: Sequence[int], dtype: type) -> np.ndarray:
    """End to end; zeros where there is no array."""
    pairs = zip(arrays, lengths, strict=True)
    return np.concatenate([np.zeros(length, dtype) if array is None else array for array, length in pairs])


def pack(sequences: Sequence[TrainingSequence], seq_len: int, rank: int, ranks: int) -> list[MicroBatch]:
    """The micro-batches of one rank; together the ranks hold every sequence once."""
    plan = plan_micro_batches([len(sequence.token_ids_T) for sequence in sequences], seq_len, ranks)
    return [micro_batch([sequences[index] for index in bin_]) for bin_ in plan[rank]]
