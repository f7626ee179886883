"""Whether a group whose key a run already has is that very group: then sending it again was harmless."""

from collections.abc import Sequence

from rollouts.errors import Conflict
from rollouts.formats.arrays import Array, PackedGroup
from rollouts.models import GroupTokens, Rollout, Run, ScoredGroup
from rollouts.services.groups.insertion import Incoming


def check_repeated(run: Run, repeated: Sequence[Incoming]) -> None:
    """Raise Conflict unless the groups whose keys the run already had are those very groups."""
    keys = [each.row.key for each in repeated]
    known = {group.key: group for group in ScoredGroup.objects.select_related("tokens").filter(run=run, key__in=keys)}
    scored: dict[int, list[tuple[float | None, int]]] = {group.pk: [] for group in known.values()}
    rollouts = Rollout.objects.filter(group__in=scored).order_by("group", "index")
    for group_id, reward, token_count in rollouts.values_list("group_id", "reward", "token_count"):
        scored[group_id].append((reward, token_count))
    for row, group, *_ in repeated:
        old = known[row.key]
        rewards = [rollout.reward for rollout in group.rollouts]
        if not (
            (old.environment_id, old.problem_key) == (row.environment_id, row.problem_key)
            and scored[old.pk] == list(zip(rewards, group.arrays.lengths.tolist(), strict=True))
            and _has_arrays(old, group)
        ):
            raise Conflict(f"The key {row.key} was used for another group. Give every group a key of its own.")


def _has_arrays(old: ScoredGroup, group: PackedGroup) -> bool:
    try:
        stored = old.tokens
    except GroupTokens.DoesNotExist:
        return False
    names = ("token_ids", "loss_mask", "inference_logprobs", "ref_logprobs", "advantages", "branch_lengths")
    return all(_bytes(getattr(stored, name)) == _bytes(getattr(group.arrays, name)) for name in names)


def _bytes(data: bytes | memoryview | Array | None) -> bytes | None:
    return None if data is None else bytes(data)
