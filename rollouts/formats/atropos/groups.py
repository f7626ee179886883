"""An item as it is stored: arrays for the trainer, columns for people, and `extras` for the rest of it.

Every item comes back as it was sent, with floats of 32 bits; `encoding` is the way back. One pass over each array.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from environments.types import MAX_TOKEN_ID
from rollouts.errors import Fault, Invalid, Loc
from rollouts.formats.arrays import COUNT, LOGPROB, MASK, TOKEN_ID, Array, GroupArrays, PackedGroup, RolloutRecord
from rollouts.formats.atropos.extras import (
    FILL,
    FLOAT,
    IGNORED,
    INT,
    Extras,
    Ragged,
    ignored,
    lacks_logprobs,
    pack_ragged,
    parsed,
    zeroed_by,
)
from rollouts.formats.atropos.items import NULL, Floats, Item, Rows
from rollouts.formats.atropos.messages import JsonObject, storable
from rollouts.formats.atropos.numbers import Flat
from rollouts.formats.checks import LOGPROB_SLACK
from rollouts.storable import MAX_GROUP_SIZE, MAX_INT
from trainers.run_config import RunConfig

MAX_FAULTS = 20


def pack_item(item: Item, environment: str, at: Loc = ()) -> PackedGroup:
    """The group of an item. Raises Invalid, with faults below ``at``, for what does not hold together."""
    lengths = _check_shape(item, at)
    if item.env_id is not None and abs(item.env_id) > MAX_INT:
        raise Invalid(faults=[_too_large((*at, "env_id"), item.env_id)])
    extras = Extras(env_id=item.env_id)
    tokens = _ints(item.tokens, (*at, "tokens"))
    if tokens.min() < 0:
        raise Invalid(faults=_out_of_range(item.tokens, 0, MAX_TOKEN_ID, (*at, "tokens")))
    trained = _trained(_ints(item.masks, (*at, "masks")), tokens, extras)
    arrays = GroupArrays(
        lengths=np.array(lengths, COUNT),
        token_ids=tokens.view(TOKEN_ID),
        loss_mask=trained.view(MASK),
        inference_logprobs=_inference_logprobs(item, trained, extras, at),
        ref_logprobs=_ref_logprobs(item, lengths, trained, extras, at),
        advantages=_advantages(item, lengths, extras, at),
    )
    messages_by_rollout = _messages(item, len(lengths), extras)
    _keep_the_rest(item, extras, at)
    return PackedGroup(
        environment=environment,
        problem_key=_problem_key(tokens, trained, lengths),
        rollouts=[
            RolloutRecord(reward=score, messages=messages)
            for score, messages in zip(item.scores, messages_by_rollout, strict=True)
        ],
        arrays=arrays,
        extras=extras.pack(),
    )


def check_trainable(group: PackedGroup, config: RunConfig, at: Loc = ()) -> None:
    """For a run with a trainer of ours; what those of others do with a group is theirs to know.

    Raises Invalid, with faults below ``at``, for keys that it would pass over, and for logprobs that its loss lacks.
    """
    if not config.is_trained:
        return
    faults = [
        Fault((*at, key), f"{why}: send it without, or to a run of kind external")
        for key, why in ignored(group.extras, len(group.rollouts)).items()
    ]
    if config.needs_inference_logprobs and (fault := lacks_logprobs(group.extras, group.arrays.loss_mask)):
        fix = "have the server of the environment return logprobs, or send to a run of kind external"
        why = "the loss of this run compares every trained token with the logprob it was sampled at"
        faults.append(Fault((*at, "inference_logprobs"), f"It {fault}, and {why}: {fix}"))
    if faults:
        raise Invalid(faults=faults)


def _check_shape(item: Item, at: Loc) -> list[int]:
    """Tokens per sequence. Lengths that disagree are refused: no client of Atropos makes them."""
    lengths = list(map(len, item.tokens))
    count = len(lengths)
    if not 0 < count <= MAX_GROUP_SIZE:
        message = f"A group should have 1 to {MAX_GROUP_SIZE} sequences, this one has {count}"
        raise Invalid(faults=[Fault((*at, "tokens"), message)])
    faults = []
    if 0 in lengths:
        faults.append(Fault((*at, "tokens", lengths.index(0)), "A sequence should have a token", value=[]))
    if len(item.scores) != count:
        faults.append(Fault((*at, "scores"), f"{len(item.scores)} scores for {count} sequences"))
    for key, rows in (("masks", item.masks), ("inference_logprobs", item.inference_logprobs or item.tokens)):
        entries = list(map(len, rows))
        if len(entries) != count:
            faults.append(Fault((*at, key), f"{len(entries)} rows for {count} sequences"))
        elif entries != lengths:
            faults += [
                Fault((*at, key, index), f"{own} entries for {length} tokens")
                for index, (own, length) in enumerate(zip(entries, lengths, strict=True))
                if own != length
            ]
    if faults:
        raise Invalid(faults=faults[:MAX_FAULTS])
    return lengths


def _trained(masks: Array, tokens: Array, extras: Extras) -> Array:
    """bool [N]: which tokens are trained on; what the masks cannot be rebuilt from by that goes to ``extras``."""
    trained: Array = masks != IGNORED
    if ((masks == tokens) | ~trained).all():
        return trained
    if (masks.view(TOKEN_ID) <= 1).all():
        extras.has_binary_masks = True
        return masks.astype(np.bool_)
    extras.masks = masks.tobytes()
    return trained


def _inference_logprobs(item: Item, trained: Array, extras: Extras, at: Loc) -> Array:
    if not item.inference_logprobs:
        if item.inference_logprobs is not None:
            extras.json["inference_logprobs"] = b"[]"
        extras.inference_fill = None
        return np.zeros(len(trained), LOGPROB)
    sent = _floats(item.inference_logprobs, (*at, "inference_logprobs"))
    stored, extras.inference_fill = _without_fill(sent, trained)
    return stored


def _ref_logprobs(item: Item, lengths: list[int], trained: Array, extras: Extras, at: Loc) -> Array | None:
    if not _is_aligned(item.ref_logprobs, lengths, extras, "ref_logprobs"):
        return None
    assert item.ref_logprobs is not None
    stored, extras.ref_fill = _without_fill(_floats(item.ref_logprobs, (*at, "ref_logprobs")), trained)
    return stored


def _advantages(item: Item, lengths: list[int], extras: Extras, at: Loc) -> Array | None:
    if not _is_aligned(item.advantages, lengths, extras, "advantages"):
        return None
    assert item.advantages is not None
    sent = _floats(item.advantages, (*at, "advantages"))
    zeroed = zeroed_by(None if item.overrides == NULL else item.overrides)
    is_zeroed = np.repeat([index in zeroed for index in range(len(lengths))], lengths)
    if not is_zeroed.any():
        return sent
    extras.advantages = sent.tobytes()
    return np.where(is_zeroed, FLOAT.type(0), sent)


def _is_aligned(rows: Floats | Flat | None, lengths: list[int], extras: Extras, key: str) -> bool:
    """Whether there is an entry per token. Entries of another number are kept as they are, for whoever sent them."""
    if rows is None:
        return False
    if list(map(len, rows)) != lengths:
        extras.json[key] = msgspec.json.encode(_lists(rows))
        return False
    return True


def _without_fill(sent: Array, trained: Array) -> tuple[Array, float | bytes]:
    """The logprobs with 0 where nothing was sampled, and what stood there: one number, or all that was sent."""
    masked = sent[~trained]
    stored = np.where(trained, sent, LOGPROB.type(0))
    fill = float(masked[0]) if len(masked) else FILL
    if (masked == fill).all() and stored.max() <= LOGPROB_SLACK:
        return stored, fill
    return np.minimum(stored, LOGPROB.type(0)), sent.tobytes()


def _messages(item: Item, count: int, extras: Extras) -> list[list[JsonObject]]:
    """Messages per rollout as the store has them; as they were sent they go to ``extras`` if that is not the same."""
    sent = None if item.messages == NULL else parsed(item.messages)
    extras.has_messages = sent is not None
    if sent is None:
        return [[]] * count
    stored = [[storable(message) for message in row] for row in sent]
    if stored != sent or len(sent) != count:
        extras.json["messages"] = bytes(item.messages)
    return stored if len(sent) == count else [[]] * count


def _keep_the_rest(item: Item, extras: Extras, at: Loc) -> None:
    for key in ("generation_params", "overrides", "group_overrides", "images"):
        raw = getattr(item, key)
        if raw != NULL:
            extras.json[key] = bytes(raw)
    extras.distill_token_ids = _ragged(item.distill_token_ids, "distill_token_ids", _ints, extras, at)
    extras.distill_logprobs = _ragged(item.distill_logprobs, "distill_logprobs", _floats, extras, at)


def _ragged(
    rows: list[list[list[Any]]] | None,
    key: str,
    pack: Callable[[list[list[Any]], Loc], Array],
    extras: Extras,
    at: Loc,
) -> Ragged | None:
    if rows is None:
        return None
    entries = [each for row in rows for each in row]
    ragged = pack_ragged(rows, pack(entries, (*at, key)).tobytes())
    if ragged is None:
        extras.json[key] = msgspec.json.encode(rows)
    return ragged


def _problem_key(tokens: Array, trained: Array, lengths: list[int]) -> str:
    """The prompt that the sequences share, hashed: the same problem has the same key whenever it is sampled."""
    first = tokens[: lengths[0]]
    common, at = len(first), 0
    for length in lengths:
        end = at + length
        common = min(common, length)
        sampled = trained[at:end]
        differs = (tokens[at : at + common] != first[:common]) | sampled[:common]
        common = int(differs.argmax()) if differs.any() else common
        at = end
    if not common:
        return "no common prefix"
    return f"prefix-{hashlib.sha256(first[:common].tobytes()).hexdigest()[:12]}"


def _ints(rows: Rows | Flat, loc: Loc) -> Array:
    """i32, end to end."""
    if isinstance(rows, Flat):
        if rows.data.size and not (rows.data.min() >= -MAX_INT - 1 and rows.data.max() <= MAX_INT):
            raise Invalid(faults=_out_of_range(rows, -MAX_INT - 1, MAX_INT, loc))
        return rows.data.astype(INT)
    count = sum(map(len, rows))
    try:
        return np.frombuffer(struct.pack(f"<{count}i", *chain.from_iterable(rows)), INT)
    except (struct.error, OverflowError):
        raise Invalid(faults=_out_of_range(rows, -MAX_INT - 1, MAX_INT, loc)) from None


def _floats(rows: Floats | Flat, loc: Loc) -> Array:
    """f32, end to end."""
    if isinstance(rows, Flat):
        limit = float(np.finfo(np.float32).max)
        if rows.data.size and not (-limit <= rows.data.min() and rows.data.max() <= limit):
            raise Invalid(faults=_out_of_range(rows, -limit, limit, loc))
        return rows.data.astype(FLOAT)
    count = sum(map(len, rows))
    try:
        return np.frombuffer(struct.pack(f"<{count}f", *chain.from_iterable(rows)), FLOAT)
    except OverflowError:
        limit = float(np.finfo(np.float32).max)
        raise Invalid(faults=_out_of_range(rows, -limit, limit, loc)) from None


def _out_of_range(rows: Sequence[Sequence[Any]] | Flat, low: float, high: float, loc: Loc) -> list[Fault]:
    faults = (
        Fault((*loc, index, position), f"Input should be {low} to {high}", value=value)
        for index, row in enumerate(_lists(rows))
        for position, value in enumerate(row)
        if not low <= value <= high
    )
    return [each for each, _ in zip(faults, range(MAX_FAULTS), strict=False)]


def _lists(rows: Any) -> Any:
    """Rows as lists of Python's numbers, however they were parsed."""
    return rows.lists() if isinstance(rows, Flat) else rows


def _too_large(loc: Loc, value: int) -> Fault:
    return Fault(loc, f"Input should be {-MAX_INT - 1} to {MAX_INT}", value=value)
