"""Write groups with their rollouts and token arrays: two statements for any number of groups, arrays in binary.

The ORM would take a statement's worth of Python per rollout; this is the path every group of every run goes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from environments.types import JsonObject
from rollouts.formats.arrays import COUNT, Array, GroupArrays, PackedGroup, RolloutRecord
from rollouts.models import ScoredGroup
from rollouts.services.transitions import DbTime
from rollouts.sql import binary_cursor, load
from rollouts.storable import displayable_values


class Incoming(NamedTuple):
    """A group to store: its row, what is in it, and who sent it."""

    row: ScoredGroup
    group: PackedGroup
    actor: str
    held_until: DbTime | None = None
    """Until when people may look at it first."""


def insert_groups(run_id: int, incoming: Sequence[Incoming]) -> None:
    """Insert settled groups, which have their ids, and their first events. One whose key the run has is left out."""
    rows = [each.row for each in incoming]
    with binary_cursor() as cursor:
        cursor.execute(
            load("insert_groups"),
            {
                "run_id": run_id,
                "ids": [row.pk for row in rows],
                "actors": [each.actor for each in incoming],
                "keys": [row.key for row in rows],
                "environment_ids": [row.environment_id for row in rows],
                "environment_versions": [row.environment_version for row in rows],
                "problem_keys": [row.problem_key for row in rows],
                "states": [str(row.state) for row in rows],
                "reason_codes": [row.reason_code for row in rows],
                "reason_params": [_json(row.reason_params) for row in rows],
                "rollout_counts": [row.rollout_count for row in rows],
                "token_counts": [row.token_count for row in rows],
                "reward_means": [row.reward_mean for row in rows],
                "reward_stds": [row.reward_std for row in rows],
                "scored_counts": [row.scored_count for row in rows],
                "solved_counts": [row.solved_count for row in rows],
                "min_versions": [row.min_policy_version for row in rows],
                "max_versions": [row.max_policy_version for row in rows],
                "held_s": [None if each.held_until is None else each.held_until.after_s for each in incoming],
            },
        )


def insert_rollouts(incoming: Sequence[Incoming]) -> None:
    """Insert the rollouts and arrays of groups whose rows exist."""
    if not incoming:
        return
    groups = [(each.row.pk, each.group) for each in incoming]
    arrays = [group.arrays for _, group in groups]
    rollouts = [rollout for _, group in groups for rollout in group.rollouts]
    with binary_cursor() as cursor:
        cursor.execute(
            load("insert_rollouts"),
            {
                "workers": [each.actor[:100] for each in incoming for _ in each.group.rollouts],
                "group_ids": [group_id for group_id, _ in groups],
                "lengths": [each.lengths.astype(COUNT).tobytes() for each in arrays],
                "token_ids": [each.token_ids.data for each in arrays],
                "loss_masks": [each.loss_mask.data for each in arrays],
                "inference_logprobs": [each.inference_logprobs.data for each in arrays],
                "ref_logprobs": [_optional(each.ref_logprobs) for each in arrays],
                "advantages": [_optional(each.advantages) for each in arrays],
                "branch_lengths": [_optional(each.branch_lengths) for each in arrays],
                "extras": [group.extras for _, group in groups],
                "of_groups": [group_id for group_id, group in groups for _ in group.rollouts],
                "indexes": [index for _, group in groups for index in range(len(group.rollouts))],
                "seats": [rollout.seat for rollout in rollouts],
                "rollout_lengths": _per_rollout(arrays, "lengths"),
                "trained": _per_rollout(arrays, "trained_counts"),
                "rewards": [rollout.reward for rollout in rollouts],
                "metrics": [_json(rollout.metrics) for rollout in rollouts],
                "messages": [_messages(rollout.messages) for rollout in rollouts],
                "earlier_branches": [_earlier(rollout) for rollout in rollouts],
                "tools": [_json(rollout.tools) if rollout.tools else None for rollout in rollouts],
                "stop_reasons": [str(rollout.stop_reason) for rollout in rollouts],
                "error_kinds": [str(rollout.error.kind) if rollout.error else "" for rollout in rollouts],
                "errors": [_error(rollout) for rollout in rollouts],
                "dispatch_versions": [rollout.dispatch_policy_version for rollout in rollouts],
                "first_versions": [rollout.first_policy_version for rollout in rollouts],
                "last_versions": [rollout.last_policy_version for rollout in rollouts],
                "replicas": [rollout.replica for rollout in rollouts],
                "generation_s": [rollout.generation_s for rollout in rollouts],
                "spans": [_json(rollout.spans) if rollout.spans else None for rollout in rollouts],
            },
        )


def _optional(array: Array | None) -> memoryview | None:
    return None if array is None else array.data


def _per_rollout(arrays: Sequence[GroupArrays], name: str) -> list[int]:
    return [int(value) for each in arrays for value in getattr(each, name).tolist()]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _messages(messages: Sequence[JsonObject]) -> str:
    return _json([displayable_values(each) for each in messages])


def _earlier(rollout: RolloutRecord) -> str | None:
    branches = rollout.earlier_branches
    return f"[{','.join(map(_messages, branches))}]" if branches else None


def _error(rollout: RolloutRecord) -> str | None:
    return None if rollout.error is None else _json(displayable_values(msgspec.to_builtins(rollout.error)))
