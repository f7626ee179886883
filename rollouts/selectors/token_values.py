"""Reads of what the optimizer saw of single rollouts, beside what the engine had said of the same tokens."""

from dataclasses import dataclass

import numpy as np
from django.db.models import QuerySet

from rollouts.errors import NotFound
from rollouts.formats.arrays import COUNT, LOGPROB, MASK, TOKEN_ID, Array, branches_of, split
from rollouts.models import GroupTokens, Run, TokenValues
from trainers.wire import IN_LOSS, SCORED

_CONVERSATION = tuple(
    f"rollout__{name}" for name in ("messages", "earlier_branches", "tools", "metrics", "error", "spans")
)
_PAYLOAD = ("trainer_logprobs", "entropies", "ratios", "advantages", "mask_reasons", "texts")


@dataclass(frozen=True)
class SeenTokens:
    """One rollout in one step. Arrays have its length T; NaN where a token has no such value."""

    row: TokenValues
    token_ids: Array
    """u32 [T]."""
    inference_logprobs: Array
    """f32 [T]."""
    trainer_logprobs: Array
    """f32 [T]."""
    entropies: Array
    """f32 [T]."""
    ratios: Array
    """f32 [T]."""
    advantages: Array
    """f32 [T]."""
    mask_reasons: Array
    """u8 [T]."""
    texts: list[str] | None
    branch_lengths: list[int]
    """Tokens of each branch, which add up to T."""

    @property
    def differences(self) -> Array:
        """f32 [T]; the trainer's logprob minus the engine's."""
        difference: Array = self.trainer_logprobs - self.inference_logprobs
        return difference


def of_step(run: Run, step: int) -> list[TokenValues]:
    """Rows of the rollouts whose values a step has, without their arrays, in batch order."""
    return list(_rows(run).filter(batch__step=step).order_by("rollout__group_id", "rollout__index"))


def of_group(run: Run, group_id: int) -> dict[int, list[TokenValues]]:
    """Rollout id -> rows of the steps of this run that have its values, without their arrays."""
    found: dict[int, list[TokenValues]] = {}
    for row in _rows(run).filter(rollout__group=group_id).order_by("batch__step"):
        found.setdefault(row.rollout_id, []).append(row)
    return found


def get(run: Run, number: int) -> SeenTokens:
    """The values of one rollout in a step of the run. Raises NotFound."""
    rows = TokenValues.objects.select_related("batch", "rollout__group__run")
    row = rows.filter(batch__run=run, pk=number).first()
    if row is None:
        raise NotFound(f"Run {run.key} has no token values {number}.")
    tokens = GroupTokens.objects.defer("ref_logprobs", "advantages", "extras").get(group=row.rollout.group_id)
    lengths = np.frombuffer(tokens.lengths, COUNT).tolist()

    def own(data: bytes | memoryview, dtype: np.dtype) -> Array:
        return np.frombuffer(list(split(data, lengths, dtype.itemsize))[row.rollout.index], dtype)

    mask_reasons = np.frombuffer(row.mask_reasons, MASK)
    is_scored = np.isin(mask_reasons, list(SCORED))
    is_in_loss = np.isin(mask_reasons, list(IN_LOSS))

    def where(is_there: Array, data: bytes | memoryview) -> Array:
        return np.where(is_there, np.frombuffer(data, LOGPROB), np.float32(np.nan))

    return SeenTokens(
        row=row,
        token_ids=own(tokens.token_ids, TOKEN_ID),
        inference_logprobs=np.where(own(tokens.loss_mask, MASK), own(tokens.inference_logprobs, LOGPROB), np.nan),
        trainer_logprobs=where(is_scored, row.trainer_logprobs),
        entropies=where(is_scored, row.entropies),
        ratios=where(is_in_loss, row.ratios),
        advantages=where(is_in_loss, row.advantages),
        mask_reasons=mask_reasons,
        texts=row.texts,
        branch_lengths=branches_of(lengths, tokens.branch_lengths)[row.rollout.index],
    )


def _rows(run: Run) -> QuerySet[TokenValues]:
    rows = TokenValues.objects.filter(batch__run=run).select_related("batch", "rollout__group")
    return rows.defer(*_PAYLOAD, *_CONVERSATION)
