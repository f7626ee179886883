"""Stored groups as Atropos items again: the body of a batch, and the latest example.

Everything is read with two queries whatever the batch holds, and numbers go from the stored bytes to JSON with neither
the ORM nor a Python number between. The same rows are the same bytes every time. An item knows sequences only, so each
branch of a rollout is one, with the rollout's score.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rollouts.formats.arrays import COUNT, LOGPROB, MASK, TOKEN_ID, Array, branches_of
from rollouts.formats.atropos.additions import Additions, CompleteItem
from rollouts.formats.atropos.extras import FLOAT, IGNORED, INT, Extras, cut, unpack, unpack_ragged
from rollouts.formats.atropos.items import Item
from rollouts.formats.json_arrays import encode
from rollouts.models import Batch
from rollouts.sql import binary_cursor, load

_earlier_encoder = msgspec.json.Encoder(enc_hook=lambda array: array.tolist())
NO_EXAMPLE = encode(
    {
        key: []
        for key in (
            "tokens",
            "masks",
            "scores",
            "advantages",
            "ref_logprobs",
            "generation_params",
            "inference_logprobs",
            "messages",
            "images",
        )
    }
)
"""What `/latest_example` answers before there is one: these keys and no others."""


def encode_batch(batch: Batch) -> bytes:
    """The body of a batch, groups in the order of their positions."""
    return encode({"batch": _items_of(batch)})


def encode_batch_with_doubles(batch: Batch) -> bytes:
    """The same of a batch that an earlier version formed: a float32 is printed as the float64 of the same value."""
    return _earlier_encoder.encode({"batch": _items_of(batch)})


def _items_of(batch: Batch) -> list[Item]:
    return read_items(batch.items.order_by("position").values_list("group_id", flat=True))


def encode_latest(run_id: int) -> bytes:
    """The newest group that reached the run's queue, as an item; NO_EXAMPLE before there is one."""
    with binary_cursor() as cursor:
        cursor.execute(load("latest_group"), {"run_id": run_id})
        row = cursor.fetchone()
    return NO_EXAMPLE if row is None else encode(read_items(row)[0])


class ReadRollout(NamedTuple):
    """What an item tells of a rollout besides its tokens; JSON as text."""

    reward: float | None
    messages: str
    earlier_branches: str | None = None
    tools: str | None = None
    seat: str = ""


def read_items(group_ids: Iterable[int], *, is_complete: bool = False) -> list[Item]:
    """The items of groups that have their arrays, in this order; complete ones with what Atropos has no key for."""
    named = {"group_ids": list(group_ids)}
    rollouts: dict[int, list[ReadRollout]] = {group_id: [] for group_id in named["group_ids"]}
    with binary_cursor() as cursor:
        cursor.execute(load("item_rollouts"), named)
        for group_id, *columns in cursor:
            rollouts[group_id].append(ReadRollout(*columns))
        cursor.execute(load("item_tokens"), named)
        tokens = {row[0]: row[1:] for row in cursor}
    return [
        written_item(*tokens[group_id], rollouts=rollouts[group_id], is_complete=is_complete)
        for group_id in named["group_ids"]
    ]


def written_item(
    lengths: bytes,
    token_ids: bytes,
    loss_mask: bytes,
    inference_logprobs: bytes,
    ref_logprobs: bytes | None,
    advantages: bytes | None,
    branch_lengths: bytes | None,
    packed: bytes | None,
    *,
    rollouts: list[ReadRollout],
    is_complete: bool = False,
) -> Item:
    """One group as a trainer gets it, from its packed arrays and what is told of each rollout."""
    extras = unpack(packed)
    counts = np.frombuffer(lengths, COUNT)
    branches = branches_of(counts.tolist(), branch_lengths)
    tokens = np.frombuffer(token_ids, TOKEN_ID)
    trained = np.frombuffer(loss_mask, MASK).view(np.bool_)
    scored = [rollout.reward is not None and count > 0 for rollout, count in zip(rollouts, counts, strict=True)]
    columns: dict[str, Array | None] = {
        "tokens": tokens,
        "masks": _masks(tokens, trained, extras),
        "inference_logprobs": None
        if extras.inference_fill is None
        else _with_fill(inference_logprobs, trained, extras.inference_fill),
        "ref_logprobs": None if ref_logprobs is None else _with_fill(ref_logprobs, trained, extras.ref_fill),
        "advantages": None if advantages is None else np.frombuffer(extras.advantages or advantages, LOGPROB),
    }
    if not all(scored):  # of a failed episode, or a seat never asked, nothing trains, and an item cannot say so
        kept = np.repeat(scored, counts)
        branches = [each for each, is_scored in zip(branches, scored, strict=True) if is_scored]
        columns = {key: None if column is None else column[kept] for key, column in columns.items()}
        rollouts = [each for each, is_scored in zip(rollouts, scored, strict=True) if is_scored]
    parts = list(chain.from_iterable(branches))
    values: dict[str, Any] = {key: cut(column, parts) for key, column in columns.items() if column is not None}
    if extras.has_messages:
        conversations = map(_conversations, rollouts, map(len, branches))
        values["messages"] = msgspec.Raw(f"[{','.join(chain.from_iterable(conversations))}]")
    if extras.distill_token_ids is not None:
        values["distill_token_ids"] = unpack_ragged(extras.distill_token_ids, INT)
    if extras.distill_logprobs is not None:
        values["distill_logprobs"] = unpack_ragged(extras.distill_logprobs, FLOAT)
    values |= {key: msgspec.Raw(text) for key, text in extras.json.items()}
    rewards = [
        rollout.reward
        for rollout, own in zip(rollouts, branches, strict=True)
        for _ in own
        if rollout.reward is not None
    ]
    values |= {"scores": rewards, "env_id": extras.env_id}
    told, seats = [rollout.tools for rollout in rollouts], [rollout.seat for rollout in rollouts]
    additions = Additions.of([len(own) for own in branches], told, seats)
    return CompleteItem(**values, rollyard=additions) if is_complete and additions else Item(**values)


def _conversations(rollout: ReadRollout, branches: int) -> list[str]:
    """The messages of each branch, as JSON."""
    if branches == 1:
        return [rollout.messages]
    # Text of a list of lists, without the brackets around it, is the text of its members.
    earlier = [rollout.earlier_branches[1:-1]] if rollout.earlier_branches else ["[]"] * (branches - 1)
    return [*earlier, rollout.messages]


def _masks(tokens: Array, trained: Array, extras: Extras) -> Array:
    if extras.masks is not None:
        return np.frombuffer(extras.masks, INT)
    if extras.has_binary_masks:
        return trained.view(MASK)
    return np.where(trained, tokens.view(INT), INT.type(IGNORED))


def _with_fill(stored: bytes, trained: Array, fill: float | bytes) -> Array:
    if isinstance(fill, bytes):
        return np.frombuffer(fill, LOGPROB)
    return np.where(trained, np.frombuffer(stored, LOGPROB), LOGPROB.type(fill))
