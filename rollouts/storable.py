"""What rollouts and run configs must satisfy before they are stored. Types are the part of msgspec and pydantic."""

import math
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from environments.types import MAX_TOKEN_ID, StopReason
from rollouts.errors import Invalid
from rollouts.formats.arrays import MASK_FAULT, TOKEN_FAULT, UNSTORED, Array, GroupArrays, PackedGroup, RolloutRecord
from rollouts.models.group import FINITE
from trainers.config import RunConfig

MAX_GROUP_SIZE = 1024
MAX_ROLLOUT_TOKENS = 4_000_000
MAX_TEXT = 200
MAX_KEY = 64
MAX_ENVIRONMENT = 100
MAX_WEIGHT = 1e9
MAX_INT = 2**31 - 1
MAX_DEPTH = 32
DAY_S = 86_400
UNSTORABLE = "holds a NUL or a lone surrogate, which the database cannot store"
MAX_METRIC_KEY = 100
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def check_groups(groups: Sequence[PackedGroup]) -> None:
    """Raise Invalid naming every field at fault, if any."""
    fields: dict[str, str] = {}
    if not groups:
        fields["groups"] = "submit at least one group"
    for position, group in enumerate(groups):
        at = f"groups.{position}"
        if not 0 < len(group.environment) <= MAX_ENVIRONMENT:
            fields[f"{at}.environment"] = f"must have 1 to {MAX_ENVIRONMENT} characters"
        if not 0 < len(group.problem_key) <= MAX_TEXT:
            fields[f"{at}.problem_key"] = f"must have 1 to {MAX_TEXT} characters"
        if group.key is not None and not 0 < len(group.key) <= MAX_KEY:
            fields[f"{at}.key"] = f"must have 1 to {MAX_KEY} characters"
        for name, text in (
            ("environment", group.environment),
            ("problem_key", group.problem_key),
            ("key", group.key),
        ):
            if text is not None and not is_storable(text):
                fields[f"{at}.{name}"] = UNSTORABLE
        fields |= _rollout_faults(group, at)
    keys = Counter(group.key for group in groups if group.key is not None)
    fields |= {f"groups.key {key}": "is used twice in one request" for key, count in keys.items() if count > 1}
    if fields:
        raise Invalid("Nothing was stored: the groups do not hold together.", fields=fields)


def check_fits(config: RunConfig) -> None:
    """Raise Invalid naming every value of a run config that the store cannot hold."""
    limits = {
        "max_steps": (config.max_steps, MAX_INT),
        "batch.batch_size": (config.batch.batch_size, MAX_INT),
        "sampling.group_size": (config.sampling.group_size, MAX_GROUP_SIZE),
        "workers.lease_s": (config.workers.lease_s, DAY_S),
    }
    if config.evaluation is not None:
        limits["evaluation.problems"] = (config.evaluation.problems, MAX_INT)
        limits["evaluation.rollouts_per_problem"] = (config.evaluation.rollouts_per_problem, MAX_GROUP_SIZE)
        limits["evaluation.deadline_s"] = (config.evaluation.deadline_s, 30 * DAY_S)
    fields = {name: f"must be at most {limit}" for name, (value, limit) in limits.items() if value > limit}
    for index, environment in enumerate(config.environments):
        if len(environment.name) > MAX_ENVIRONMENT:
            fields[f"environments.{index}.name"] = f"must have at most {MAX_ENVIRONMENT} characters"
        if environment.weight >= MAX_WEIGHT:
            fields[f"environments.{index}.weight"] = f"must be less than {MAX_WEIGHT:.0f}"
    fields |= dict(data_faults(config.model_dump(mode="json")))
    if fields:
        raise Invalid(f"The run config does not fit: {', '.join(fields)}.", fields=fields)


def check_rollouts(group: PackedGroup) -> None:
    """Raise Invalid naming every field at fault, if any."""
    if fields := _rollout_faults(group, "work"):
        raise Invalid(UNSTORED, fields=fields)


def _rollout_faults(group: PackedGroup, at: str) -> dict[str, str]:
    count = len(group.rollouts)
    if not 0 < count <= MAX_GROUP_SIZE:
        return {f"{at}.rollouts": f"a group has 1 to {MAX_GROUP_SIZE} rollouts, this one has {count}"}
    lengths = group.arrays.lengths.tolist()
    faults = {
        f"{at}.rollouts.{index}.{name}": fault
        for index, (rollout, length) in enumerate(zip(group.rollouts, lengths, strict=True))
        for name, fault in _record_faults(rollout, length)
    }
    for name, is_bad, fault in _array_faults(group.arrays):
        ends = np.cumsum(group.arrays.lengths, dtype=np.int64)
        for index in np.unique(np.searchsorted(ends, np.flatnonzero(is_bad), side="right")).tolist():
            faults.setdefault(f"{at}.rollouts.{index}.{name}", fault)
    return faults


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


def _record_faults(rollout: RolloutRecord, length: int) -> Iterator[tuple[str, str]]:
    errored = rollout.stop_reason is StopReason.ERROR
    if (rollout.reward is None) != errored:
        yield "reward", "must be null exactly when stop_reason is error"
    if rollout.reward is not None and not _finite32(rollout.reward):
        yield "reward", "must be a finite 32-bit number"
    if not errored and length == 0:
        yield "token_ids", "must not be empty unless the episode failed"
    if length > MAX_ROLLOUT_TOKENS:
        yield "token_ids", f"must have at most {MAX_ROLLOUT_TOKENS} tokens"
    if any(not _finite32(value) for value in rollout.metrics.values()):
        yield "metrics", "must be finite"
    if not all(0 < len(key) <= MAX_METRIC_KEY and is_storable(key) for key in rollout.metrics):
        yield "metrics", f"a key must have 1 to {MAX_METRIC_KEY} characters, and no NUL"
    for name in ("dispatch_policy_version", "first_policy_version", "last_policy_version"):
        version = getattr(rollout, name)
        if version is not None and not 0 <= version <= MAX_TOKEN_ID:
            yield name, f"must lie in 0..{MAX_TOKEN_ID}"
    if len(rollout.replica) > 100 or not is_storable(rollout.replica):
        yield "replica", "must have at most 100 characters, and no NUL"
    if not _finite32(rollout.generation_s) or rollout.generation_s < 0:
        yield "generation_s", "must be a number of seconds"


LOGPROB_SLACK = 1e-3
"""Engines round: a certain token may come back a hair above 0."""


def _finite32(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= FINITE


def data_faults(value: Any, at: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """(dotted path, what is wrong there) of plain data that Postgres, or a reader that recurses, could not take."""
    if depth > MAX_DEPTH:
        yield at, f"is nested more than {MAX_DEPTH} deep"
    elif isinstance(value, str):
        if not is_storable(value):
            yield at, UNSTORABLE
    elif isinstance(value, dict):
        for key, item in value.items():
            path = f"{at}.{displayable(str(key))}".lstrip(".")
            if not is_storable(str(key)):
                yield path, UNSTORABLE
            yield from data_faults(item, path, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from data_faults(item, f"{at}.{index}".lstrip("."), depth + 1)


def is_storable(text: str) -> bool:
    """Whether Postgres can hold the text: it knows neither NUL nor lone surrogates."""
    return _UNSTORABLE.search(text) is None


def displayable(text: str) -> str:
    """Text that Postgres can hold, for text that is derived from tokens: NULs and lone surrogates become U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def is_uuid(text: str) -> bool:
    """Whether a token could be one of ours; anything else need not be looked up."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
