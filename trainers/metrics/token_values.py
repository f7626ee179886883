"""What the optimizer sees of a few rollouts of every step, token by token, for people who look at them.

    choose      a share of the batch, by a hash of (run, step, rollout): a repeated step chooses the same rollouts
    record      keep what the loss made of their tokens, as their micro-batches come by
    collect     on rank 0, laid out over all tokens of each rollout, with their texts

Nothing is recorded of rollouts that are not chosen. Every rank knows all that are chosen and how many values each has,
so one sum over the ranks brings them together, wherever each was trained.

Shapes: K scored tokens of a micro-batch, L of one branch, T all tokens of one rollout, its branches end to end. Rows
are the arrays of a `TokenValuesIn`, in that order.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import PreTrainedTokenizerBase

from trainers.distributed.mesh import World
from trainers.model.lm_head import TokenScores
from trainers.objective.step import Evaluated
from trainers.packing import MicroBatch, RolloutKey, TrainingSequence, branch_slices
from trainers.wire import MAX_TOKEN_TEXT, MAX_VALUE_TOKENS, MaskReason, TokenValuesIn, TrainingBatch, TrainingRollout

_ROWS = 5

BranchKey = tuple[RolloutKey, int]
"""A rollout, and which of its branches."""


class TokenWatch:
    """The chosen rollouts of one step. Every rank has one; `collect` is collective."""

    def __init__(self, batch: TrainingBatch, sequences: Sequence[TrainingSequence], share: float, world: World) -> None:
        self._rollouts = choose_watched(batch, sequences, share)
        self._chosen = {_branch(sequence): sequence for sequence in sequences if sequence.rollout in self._rollouts}
        self._found: dict[BranchKey, torch.Tensor] = {}
        # Ranks that share their micro-batches see the same: the first of them records. The last stage alone sees any.
        places = [world.mesh[name].get_local_rank() for name in ("context", "tensor")]
        self._is_recorder = not any(places)
        self._is_main = world.is_main

    @torch.no_grad()
    def record(self, batch: MicroBatch, scores: TokenScores, evaluated: Evaluated) -> None:
        """Keep the values of the chosen rollouts in one micro-batch."""
        if not self._chosen or not self._is_recorder:
            return
        present = [(at, key) for at, key in enumerate(map(_branch, batch.sequences_S)) if key in self._chosen]
        if not present:
            return
        trained = batch.trained_tokens
        echo = (0, len(batch.targets_K) - trained)
        reason_K = torch.zeros_like(scores.entropy_K[:trained])
        for reason, mark_K in sorted(evaluated.marks_K.items()):
            reason_K = reason_K.masked_fill(mark_K != 0, float(reason))
        rows_K = torch.stack(
            [
                scores.logprobs_K,
                scores.entropy_K,
                F.pad(evaluated.ratio_K(), echo),
                F.pad(batch.advantages_K[:trained], echo),
                F.pad(reason_K, echo, value=float(MaskReason.ECHO)),
            ]
        )
        for at, key in present:
            self._found[key] = rows_K[:, batch.sequence_K == at]

    def collect(self, tokenizer: PreTrainedTokenizerBase) -> list[TokenValuesIn]:
        """The values of the chosen rollouts on rank 0, an empty list on the others. Collective."""
        if not self._chosen:
            return []
        places = [_scored_positions(sequence) for sequence in self._chosen.values()]
        rows = torch.zeros(_ROWS, sum(map(len, places)))
        parts = rows.split(list(map(len, places)), dim=1)
        for key, part in zip(self._chosen, parts, strict=True):
            if (found := self._found.get(key)) is not None:
                part.copy_(found)
        dist.reduce(rows, dst=0)  # one rank has each value, the others have zeros
        if not self._is_main:
            return []
        texts = _texts(list(self._rollouts.values()), tokenizer)
        rows_of: dict[RolloutKey, list[tuple[int, np.ndarray, np.ndarray]]] = {}
        for sequence, at_L, part in zip(self._chosen.values(), places, parts, strict=True):
            rows_of.setdefault(sequence.rollout, []).append((sequence.branch, at_L, part.numpy()))
        return [_laid_out(rollout, rows_of[key], texts) for key, rollout in self._rollouts.items()]


def _branch(sequence: TrainingSequence) -> BranchKey:
    return sequence.rollout, sequence.branch


def choose_watched(
    batch: TrainingBatch, sequences: Sequence[TrainingSequence], share: float
) -> dict[RolloutKey, TrainingRollout]:
    """Which of the rollouts that train are watched: at least one unless the share is 0, no more than an ack takes."""
    if not share:
        return {}
    rollouts = {(rollout.group, rollout.index): rollout for rollout in batch.rollouts}
    names = dict.fromkeys(sequence.rollout for sequence in sequences)
    chosen: dict[RolloutKey, TrainingRollout] = {}
    room = MAX_VALUE_TOKENS
    for draw, _, name in sorted((_draw(batch, *name), at, name) for at, name in enumerate(names)):
        if chosen and draw >= share:
            break
        if (length := len(rollouts[name].loss_mask)) <= room:
            chosen[name] = rollouts[name]
            room -= length
    return chosen


def _draw(batch: TrainingBatch, group: str, index: int) -> float:
    """A number in [0, 1) that depends on nothing but the names."""
    name = f"{batch.run}/{batch.step}/{group}/{index}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64


def _scored_positions(sequence: TrainingSequence) -> np.ndarray:
    """Where its L scored tokens are, in the order in which a micro-batch has them."""
    echo_T = np.zeros(0, bool) if sequence.echo_T is None else sequence.echo_T
    return np.concatenate([np.flatnonzero(sequence.trained_T), np.flatnonzero(echo_T)])


def _laid_out(
    rollout: TrainingRollout, branches: Sequence[tuple[int, np.ndarray, np.ndarray]], texts: dict[int, str]
) -> TokenValuesIn:
    """All tokens of a rollout, from (which branch, its L scored positions, the rows there)."""
    loss_mask_T = np.frombuffer(rollout.loss_mask, np.uint8)
    rows_T = np.zeros((_ROWS, len(loss_mask_T)), "<f4")
    rows_T[-1] = np.where(loss_mask_T, MaskReason.NOT_SCORED, MaskReason.NOT_SAMPLED)
    slices = branch_slices(rollout)
    for branch, at_L, rows_L in branches:
        rows_T[:, slices[branch].start + at_L] = rows_L
    logprobs, entropies, ratios, advantages, reasons = rows_T
    return TokenValuesIn(
        group=rollout.group,
        index=rollout.index,
        trainer_logprobs=logprobs.tobytes(),
        entropies=entropies.tobytes(),
        ratios=ratios.tobytes(),
        advantages=advantages.tobytes(),
        mask_reasons=reasons.astype(np.uint8).tobytes(),
        texts=[texts[token_id] for token_id in np.frombuffer(rollout.token_ids, "<u4").tolist()],
    )


def _texts(rollouts: Sequence[TrainingRollout], tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Token id -> what it says inside a text. A part of a character becomes U+FFFD, and so does NUL."""
    ids = np.unique(np.concatenate([np.frombuffer(rollout.token_ids, "<u4") for rollout in rollouts])).tolist()
    # Some tokenizers drop the space that a token begins with at the beginning of a text, so it is said twice.
    once, twice = (
        tokenizer.batch_decode([[token_id] * times for token_id in ids], clean_up_tokenization_spaces=False)
        for times in (1, 2)
    )
    return {
        token_id: both[len(first) :][:MAX_TOKEN_TEXT].replace("\0", "\ufffd")
        for token_id, first, both in zip(ids, once, twice, strict=True)
    }
