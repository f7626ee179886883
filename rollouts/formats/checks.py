"""What a group must satisfy before it is stored. Types are the part of whoever decoded it."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from environments.types import MAX_TOKEN_ID, PlayedRollout, StopReason
from rollouts.errors import Fault, Invalid, Loc
from rollouts.formats.arrays import MASK_FAULT, TOKEN_FAULT, UNSTORED, Array, GroupArrays, PackedGroup, RolloutRecord
from rollouts.storable import (
    FINITE,
    MAX_ENVIRONMENT,
    MAX_ENVIRONMENT_VERSION,
    MAX_GROUP_SIZE,
    MAX_KEY,
    MAX_METRIC_KEY,
    MAX_SEAT,
    MAX_TEXT,
    UNNAMABLE,
    UNSTORABLE,
    data_faults,
    is_name,
    is_storable,
)

MAX_ROLLOUT_TOKENS = 4_000_000
MAX_SPANS = 4_000
WAYS = frozenset({".", ".."})
"""Browsers follow them to another address, wherever between slashes they stand."""
NO_TOKENS = "must not be empty unless the episode failed, or its seat was never asked"
LOGPROB_SLACK = 1e-3
"""Engines round: a certain token may come back a hair above 0."""


def check_groups(groups: Sequence[PackedGroup]) -> None:
    """Raise Invalid with every fault, if any; locations begin with ``groups`` and the group's position."""
    found: dict[Loc, str] = {}
    if not groups:
        found["groups",] = "submit at least one group"
    for position, group in enumerate(groups):
        at = ("groups", position)
        if not 0 < len(group.environment) <= MAX_ENVIRONMENT:
            found[*at, "environment"] = f"must have 1 to {MAX_ENVIRONMENT} characters"
        if not 0 < len(group.problem_key) <= MAX_TEXT:
            found[*at, "problem_key"] = f"must have 1 to {MAX_TEXT} characters"
        if group.key is not None and not 0 < len(group.key) <= MAX_KEY:
            found[*at, "key"] = f"must have 1 to {MAX_KEY} characters"
        if len(group.environment_version) > MAX_ENVIRONMENT_VERSION:
            found[*at, "environment_version"] = f"must have at most {MAX_ENVIRONMENT_VERSION} characters"
        for name, text in (
            ("environment", group.environment),
            ("environment_version", group.environment_version),
            ("problem_key", group.problem_key),
            ("key", group.key),
        ):
            if text is not None and not is_storable(text):
                found[*at, name] = UNSTORABLE
        for name, text in (
            ("environment", group.environment),
            ("environment_version", group.environment_version),
            ("key", group.key or ""),
        ):
            if not is_name(text):
                found[*at, name] = UNNAMABLE
        if WAYS & set((group.key or "").split("/")):
            found[*at, "key"] = "must have no part . or .., which leads elsewhere in an address"
        found |= _rollout_faults(group, at)
    keys = Counter(group.key for group in groups if group.key is not None)
    found |= {(f"groups.key {key}",): "is used twice in one request" for key, count in keys.items() if count > 1}
    if found:
        raise Invalid("Nothing was stored: the groups do not hold together.", faults=_as_data(found))


def check_rollouts(group: PackedGroup, *, may_lack_tokens: bool = False) -> None:
    """Raise Invalid with every fault, if any; locations begin with ``work``. An endpoint's rollouts lack tokens."""
    if found := _rollout_faults(group, ("work",), may_lack_tokens=may_lack_tokens):
        raise Invalid(UNSTORED, faults=_as_data(found))


def _as_data(found: dict[Loc, str]) -> Iterator[Fault]:
    return (Fault(loc, message) for loc, message in found.items())


def lacks_tokens(rollout: RolloutRecord | PlayedRollout, length: int) -> bool:
    """Whether there is no token of an episode in which the policy must have spoken."""
    return rollout.stop_reason is not StopReason.ERROR and length == 0 and not rollout.seat


def _rollout_faults(group: PackedGroup, at: Loc, *, may_lack_tokens: bool = False) -> dict[Loc, str]:
    count = len(group.rollouts)
    if not 0 < count <= MAX_GROUP_SIZE:
        return {(*at, "rollouts"): f"a group has 1 to {MAX_GROUP_SIZE} rollouts, this one has {count}"}
    lengths = group.arrays.lengths.tolist()
    found: dict[Loc, str] = {
        (*at, "rollouts", index, name): message
        for index, (rollout, length) in enumerate(zip(group.rollouts, lengths, strict=True))
        for name, message in _record_faults(rollout, length, may_lack_tokens)
    }
    for name, is_bad, message in _array_faults(group.arrays):
        ends = np.cumsum(group.arrays.lengths, dtype=np.int64)
        for index in np.unique(np.searchsorted(ends, np.flatnonzero(is_bad), side="right")).tolist():
            found.setdefault((*at, "rollouts", index, name), message)
    return found


def _array_faults(arrays: GroupArrays) -> Iterator[tuple[str, Array, str]]:
    """(field, where it is wrong, why). One look at all numbers tells that nothing is, as nearly always."""
    if not len(arrays.token_ids):
        return
    if arrays.token_ids.max() > MAX_TOKEN_ID:
        yield "token_ids", arrays.token_ids > MAX_TOKEN_ID, TOKEN_FAULT
    if arrays.loss_mask.max() > 1:
        yield "loss_mask", arrays.loss_mask > 1, MASK_FAULT
    for name in ("inference_logprobs", "ref_logprobs", "advantages"):
        values = getattr(arrays, f"{name}")
        if values is None:
            continue
        # NaN is the minimum and the maximum of whatever holds one.
        low, high = values.min(), values.max()
        if not (low >= -FINITE and high <= FINITE):
            yield name, ~np.isfinite(values), "must be finite 32-bit numbers"
        elif name != "advantages" and high > LOGPROB_SLACK:
            yield name, values > LOGPROB_SLACK, "a logprob is never positive"


def _record_faults(rollout: RolloutRecord, length: int, may_lack_tokens: bool) -> Iterator[tuple[str, str]]:
    errored = rollout.stop_reason is StopReason.ERROR
    if (rollout.reward is None) != errored:
        yield "reward", "must be null exactly when stop_reason is error"
    if rollout.reward is not None and not _finite32(rollout.reward):
        yield "reward", "must be a finite 32-bit number"
    if not may_lack_tokens and lacks_tokens(rollout, length):
        yield "token_ids", NO_TOKENS
    if length > MAX_ROLLOUT_TOKENS:
        yield "token_ids", f"must have at most {MAX_ROLLOUT_TOKENS} tokens"
    if any(not _finite32(value) for value in rollout.metrics.values()):
        yield "metrics", "must be finite"
    if not all(0 < len(key) <= MAX_METRIC_KEY and is_name(key) for key in rollout.metrics):
        yield "metrics", f"a key must have 1 to {MAX_METRIC_KEY} characters, none of which hides or controls"
    for name in ("dispatch_policy_version", "first_policy_version", "last_policy_version"):
        version = getattr(rollout, name)
        if version is not None and not 0 <= version <= MAX_TOKEN_ID:
            yield name, f"must lie in 0..{MAX_TOKEN_ID}"
    if len(rollout.seat) > MAX_SEAT or not is_name(rollout.seat):
        yield "seat", f"must have at most {MAX_SEAT} characters, none of which hides or controls"
    if len(rollout.replica) > 100 or not is_name(rollout.replica):
        yield "replica", "must have at most 100 characters, none of which hides or controls"
    for path, fault in islice(data_faults(rollout.tools), 1):
        yield "tools", f"{path} {fault}"
    if not _finite32(rollout.generation_s) or rollout.generation_s < 0:
        yield "generation_s", "must be a number of seconds"
    if len(rollout.spans) > MAX_SPANS:
        yield "spans", f"must be at most {MAX_SPANS}"
    if not all(_finite32(span.began_s) and _finite32(span.seconds) and span.seconds >= 0 for span in rollout.spans):
        yield "spans", "must begin at and last a number of seconds"


def _finite32(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= FINITE
