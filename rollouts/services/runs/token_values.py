"""Store what a trainer says the optimizer saw of some rollouts of a batch, token by token."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rollouts.errors import Invalid
from rollouts.formats.arrays import LOGPROB
from rollouts.models import Batch, Rollout, TokenValues
from rollouts.storable import FINITE
from trainers import wire

FLOATS = ("trainer_logprobs", "entropies", "ratios", "advantages")
_COLUMNS = (*FLOATS, "mask_reasons", "texts")


def store(batch: Batch, values: Sequence[wire.TokenValuesIn]) -> None:
    """Insert or overwrite the values of some rollouts. Raises Invalid, naming every field at fault.

    The caller holds the lock on the run's row, in a transaction.
    """
    if not values:
        return
    if (count := sum(len(each.mask_reasons) for each in values)) > wire.MAX_VALUE_TOKENS:
        fault = f"of {count} tokens: send those of at most {wire.MAX_VALUE_TOKENS} with one step"
        raise Invalid(fields={"token_values": fault})
    members = _members(batch, {each.group for each in values})
    rows, fields = [], {}
    for at, each in enumerate(values):
        member = members.pop((each.group, each.index), None)
        if member is None:
            fields[f"token_values.{at}"] = "is of no rollout that this step trained on, or of one that came before"
            continue
        fields |= {f"token_values.{at}.{name}": fault for name, fault in _faults(each, member.tokens)}
        columns = {name: getattr(each, name) for name in _COLUMNS}
        rows.append(TokenValues(batch=batch, rollout_id=member.pk, **columns))
    if fields:
        raise Invalid("Nothing was stored: the token values do not fit the batch.", fields=fields)
    TokenValues.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["batch", "rollout"], update_fields=_COLUMNS
    )


class _Member(NamedTuple):
    pk: int
    tokens: int


def _members(batch: Batch, groups: set[str]) -> dict[tuple[str, int], _Member]:
    """The rollouts of these groups that are in the batch's body, by group and index."""
    items = dict(batch.items.filter(group__key__in=groups).values_list("group_id", "advantages"))
    rollouts = Rollout.objects.filter(group__in=items, trained_token_count__gt=0)
    columns = rollouts.values_list("group_id", "group__key", "index", "pk", "token_count")
    return {
        (key, index): _Member(pk, tokens)
        for group_id, key, index, pk, tokens in columns
        if items[group_id][index] is not None
    }


def _faults(values: wire.TokenValuesIn, tokens: int) -> Iterator[tuple[str, str]]:
    for name in FLOATS:
        data = getattr(values, name)
        if len(data) != 4 * tokens:
            yield name, f"has {len(data)} bytes for {tokens} tokens of 4 bytes"
        # NaN fails every comparison.
        elif not (np.abs(np.frombuffer(data, LOGPROB)) <= FINITE).all():
            yield name, "must be finite 32-bit numbers"
    if len(values.mask_reasons) != tokens:
        yield "mask_reasons", f"has {len(values.mask_reasons)} bytes for {tokens} tokens of 1 byte"
    elif max(values.mask_reasons) > max(wire.MaskReason):
        yield "mask_reasons", f"must lie in 0..{max(wire.MaskReason)}"
    if values.texts is not None and len(values.texts) != tokens:
        yield "texts", f"has {len(values.texts)} entries for {tokens} tokens"
    elif max(map(len, values.texts or ()), default=0) > wire.MAX_TOKEN_TEXT:
        yield "texts", f"must have at most {wire.MAX_TOKEN_TEXT} characters each"
