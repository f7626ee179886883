"""Which tokens of groups were sampled: read for many groups at once, the tokens only where they are wanted."""

from collections.abc import Iterable
from functools import partial

from rollouts.formats.examples import Sampled
from rollouts.sql import binary_cursor, load


def of_groups(group_ids: Iterable[int]) -> dict[int, Sampled]:
    """By group; without those that have no token arrays."""
    with binary_cursor() as cursor:
        cursor.execute(load("sampled_masks"), {"group_ids": list(group_ids)})
        return {
            group_id: Sampled(lengths, mask, branch_lengths, partial(_token_ids, group_id))
            for group_id, lengths, mask, branch_lengths in cursor
        }


def _token_ids(group_id: int) -> bytes:
    with binary_cursor() as cursor:
        cursor.execute(load("group_tokens"), {"group_id": group_id})
        [(token_ids,)] = cursor
        return bytes(token_ids)
