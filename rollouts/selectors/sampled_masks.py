"""Which tokens of groups were sampled, and so what of their messages the policy said: read for many groups at once, the
tokens only where they are wanted."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial

from rollouts.formats.examples import Sampled
from rollouts.sql import binary_cursor, load


def of_groups(group_ids: Iterable[int]) -> dict[int, Sampled]:
    """By group; without those that have no token arrays."""
    return dict(_each(group_ids))


def replies(rollouts: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int], list[int | None]]:
    """What `Sampled.replies` says of rollouts, each given by its group, its index and how many branches it has messages
    of. By group and index. One mask is in memory at a time; a rollout of a group without arrays has None."""
    wanted: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for group_id, index, branches in rollouts:
        wanted[group_id][index] = branches
    found: dict[tuple[int, int], list[int | None]] = {
        (group_id, index): [None] * branches for group_id, own in wanted.items() for index, branches in own.items()
    }
    for group_id, sampled in _each(wanted):
        found |= {(group_id, index): sampled.replies(index, own) for index, own in wanted[group_id].items()}
    return found


def _each(group_ids: Iterable[int]) -> Iterator[tuple[int, Sampled]]:
    """Read as they are taken; the connection is theirs until the last one is."""
    with binary_cursor() as cursor:
        rows = cursor.stream(load("sampled_masks"), {"group_ids": list(group_ids)}, binary=True)
        for group_id, lengths, mask, branch_lengths, asked in rows:
            yield group_id, Sampled(lengths, mask, branch_lengths, asked, partial(_token_ids, group_id))


def _token_ids(group_id: int) -> bytes:
    with binary_cursor() as cursor:
        cursor.execute(load("group_tokens"), {"group_id": group_id})
        [(token_ids,)] = cursor
        return bytes(token_ids)
