"""Which groups a queue holds: what is asked of a group's own columns, and what has to be read of its rollouts.

    candidates ─► a page of them ─► fitting: those of whose rollouts it is true too

Only columns of groups are asked of all groups at once. Whatever rollouts have to be read for is asked of one page of
groups at a time, so no statement reads more than that, however few groups fit.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

import msgspec
from django.db.models import F, Max, Min, Q, QuerySet
from django.db.models.functions import Mod
from msgspec import Meta

from environments.types import ErrorKind
from rollouts.errors import Invalid
from rollouts.models import (
    COUNTING_REWARD,
    ROUNDING,
    LabelQueue,
    Project,
    Purpose,
    QueueUnit,
    Rollout,
    Run,
    RunKind,
    ScoredGroup,
)
from rollouts.selectors import sampled_masks
from rollouts.sql import binary_cursor, load
from rollouts.states import GroupState
from rollouts.storable import MAX_ENVIRONMENT, MAX_INT, MAX_KEY, UNSTORABLE, is_storable

PAGE = 200
"""Groups whose rollouts are read at a time."""
MOST_AT_ONCE = 20_000
"""Groups that one act takes: somebody waits for it."""
MOST_NAMED = 200
"""Groups that a filter or a recipe names one by one."""
MAX_SEARCHED = 200
"""Characters of a text that is looked for."""
_MIXED = 2_654_435_761
"""Knuth's multiplier: neighbouring ids are drawn as if by chance, and the same ones every time."""

FilterState = Literal["held", "ready", "batched", "trained", "evaluated", "stale", "filtered", "failed", "surplus"]
FILTER_STATES: tuple[str, ...] = get_args(FilterState)
"""Of groups that somebody may look at."""


class QueueFilter(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which groups a queue holds; of rollouts those whose group and who themselves fit."""

    run: str = ""
    """Key of one run; empty: every run of the project."""
    groups: list[str] = []
    """Only these, by their keys, of which a run has one each: so `run` says whose. Empty: all."""
    environment: str = ""
    state: FilterState | Literal[""] = ""
    """Empty: any that ``groups`` names; of others none that is rejected, and of a run that trains none of its
    evaluations'."""
    min_version: int | None = None
    max_version: int | None = None
    """The newest policy version that played: step n trains on what version n and those before it played."""
    min_reward: float | None = None
    max_reward: float | None = None
    """Of a group its mean."""
    min_gap: float | None = None
    max_gap: float | None = None
    """Best minus worst reward of the group."""
    equal_rewards: bool = False
    """Only groups whose rewards are all equal."""
    min_deviation: float | None = None
    """Only groups whose rewards differ: their standard deviation is at least this."""
    error: str = ""
    """Only where an episode failed with an error of this kind: `policy`, `tool`, ..."""
    truncated: bool = False
    """Only where a token budget ended an episode."""
    text: str = ""
    """Only where the policy said or thought this, a to z in upper or lower case. Of what else fits all is read."""
    min_tokens: int | None = None
    max_tokens: int | None = None
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Drawn at random, the same ones every time."""

    @property
    def is_of_rollouts(self) -> bool:
        """Whether rollouts have to be read to say which groups fit."""
        return bool(self.error or self.truncated or self.text) or self.min_gap is not None or self.max_gap is not None


def filter_of(queue: LabelQueue) -> QueueFilter:
    """The filter of a queue."""
    return msgspec.convert(queue.filter, QueueFilter)


def candidates(queue: LabelQueue, *, with_rejected: bool = False) -> QuerySet[ScoredGroup]:
    """Every group whose own columns fit the filter of a queue, whether it is in already or not."""
    chosen = filter_of(queue)
    groups = ScoredGroup.objects.filter(run__project=queue.project_id, settled_at__isnull=False)
    if chosen.run:
        groups = groups.filter(run__key=chosen.run)
    if chosen.groups:
        groups = groups.filter(key__in=chosen.groups)
    if chosen.environment:
        groups = groups.filter(environment__name=chosen.environment)
    if chosen.state:
        groups = groups.filter(state__in=[chosen.state, *([GroupState.REJECTED] if with_rejected else [])])
    elif not chosen.groups:
        if not with_rejected:
            groups = groups.exclude(state=GroupState.REJECTED)
        # Nobody learns from words on what evaluations played.
        groups = groups.filter(~Q(purpose=Purpose.EVAL) | Q(run__kind=RunKind.EVAL))
    if chosen.equal_rewards:
        groups = groups.filter(reward_std__lt=ROUNDING)
    if chosen.min_deviation is not None:
        groups = groups.filter(reward_std__gte=chosen.min_deviation)
    groups = groups.filter(_between("max_policy_version", chosen.min_version, chosen.max_version))
    if queue.unit != QueueUnit.ROLLOUT:
        groups = groups.filter(_between("reward_mean", chosen.min_reward, chosen.max_reward))
        groups = groups.filter(_between("token_count", chosen.min_tokens, chosen.max_tokens))
    if chosen.share < 1:
        drawn = groups.annotate(drawn=Mod(F("id") * _MIXED, 2**32))
        groups = drawn.filter(drawn__lt=int(chosen.share * 2**32))
    return groups


def fitting(queue: LabelQueue, group_ids: list[int]) -> list[int]:
    """Of a page of candidates those whose rollouts fit too, in the same order. Reads the rollouts of the page alone."""
    chosen = filter_of(queue)
    fit = set(group_ids)
    if chosen.min_gap is not None or chosen.max_gap is not None:
        gap = Max(COUNTING_REWARD) - Min(COUNTING_REWARD)
        gaps = Rollout.objects.filter(group__in=group_ids).values("group").annotate(gap=gap)
        fit &= set(gaps.filter(_between("gap", chosen.min_gap, chosen.max_gap)).values_list("group", flat=True))
    if chosen.error or chosen.truncated or chosen.text:
        fit &= set(_saying(chosen, group_ids).values_list("group", flat=True))
    return [group_id for group_id in group_ids if group_id in fit]


def members(queue: LabelQueue, group_ids: list[int]) -> QuerySet[Rollout]:
    """The rollouts of groups that fit who fit themselves."""
    chosen = filter_of(queue)
    rollouts = _saying(chosen, group_ids).alias(counting=COUNTING_REWARD)
    rewarded = _between("counting", chosen.min_reward, chosen.max_reward)
    return rollouts.filter(rewarded, _between("token_count", chosen.min_tokens, chosen.max_tokens))


def groups_of_run(queue: LabelQueue, *, is_rejected: bool = False) -> tuple[Run, list[int]]:
    """The run that a queue of groups is of, and the ids of all its groups that fit, for one act on them.

    ``is_rejected``: those that people withhold, in place of those that they do not. Raises Invalid for a queue of
    rollouts, of several runs, or of more groups than one act takes.
    """
    chosen = filter_of(queue)
    if queue.unit != QueueUnit.GROUP or not chosen.run:
        raise Invalid("One act is on groups of one run: make a queue of groups whose filter names the run.")
    groups = candidates(queue, with_rejected=is_rejected)
    groups = groups.exclude(withheld="") if is_rejected else groups.filter(withheld="")
    ids = list(groups.order_by("id").values_list("pk", flat=True)[: MOST_AT_ONCE + 1])
    if len(ids) > MOST_AT_ONCE:
        before = " before their rollouts are read" if chosen.is_of_rollouts else ""
        raise Invalid(f"The filter lets in more than {MOST_AT_ONCE} groups{before}: make one that lets in fewer.")
    if chosen.is_of_rollouts:
        ids = [group_id for page in _pages(ids) for group_id in fitting(queue, page)]
    return Run.objects.get(key=chosen.run), ids


def faults(project: Project, chosen: QueueFilter) -> dict[str, str]:
    """What is wrong with a filter: field -> fault."""
    bounds = {name: value for name, value in msgspec.structs.asdict(chosen).items() if isinstance(value, int | float)}
    # Beyond JSON: MessagePack has infinities.
    fields = {f"filter.{name}": "must be a number" for name, value in bounds.items() if not abs(value) <= MAX_INT}
    if len(chosen.environment) > MAX_ENVIRONMENT:
        fields["filter.environment"] = f"must have at most {MAX_ENVIRONMENT} characters"
    if chosen.run and not project.runs.filter(key=chosen.run).exists():
        fields["filter.run"] = "is no run of this project"
    if fault := fault_of_keys(chosen.groups, is_of_one_run=bool(chosen.run)):
        fields["filter.groups"] = fault
    if chosen.error and chosen.error not in [kind.value for kind in ErrorKind]:
        fields["filter.error"] = f"must be one of {', '.join(kind.value for kind in ErrorKind)}"
    if len(chosen.text) > MAX_SEARCHED:
        fields["filter.text"] = f"must have at most {MAX_SEARCHED} characters"
    elif not is_storable(chosen.text):
        fields["filter.text"] = UNSTORABLE
    return fields


def fault_of_keys(keys: list[str], *, is_of_one_run: bool) -> str:
    """What is wrong with keys by which groups are named; empty: nothing."""
    if keys and not is_of_one_run:
        return "are keys within one run: name the run too, and no other one"
    if len(keys) > MOST_NAMED:
        return f"must be at most {MOST_NAMED}: describe so many by what they have in common"
    if not all(len(key) <= MAX_KEY and is_storable(key) for key in keys):
        return f"must be keys of groups, of at most {MAX_KEY} characters"
    return ""


def _saying(chosen: QueueFilter, group_ids: list[int]) -> QuerySet[Rollout]:
    """The rollouts of groups that failed, ended and spoke as the filter says."""
    rollouts = Rollout.objects.filter(group__in=group_ids)
    if chosen.error:
        rollouts = rollouts.filter(error_kind=chosen.error)
    if chosen.truncated:
        rollouts = rollouts.filter(stop_reason="length")
    if chosen.text:
        rollouts = rollouts.filter(pk__in=_who_said(chosen.text, group_ids))
    return rollouts


def _who_said(text: str, group_ids: list[int]) -> list[int]:
    """Ids of the rollouts of groups in which the policy said or thought a text: not of those whose prompt shows an
    assistant who did."""
    with binary_cursor() as cursor:
        cursor.execute(load("rollouts_saying"), {"group_ids": group_ids, "text": text})
        shown = cursor.fetchall()
    own = sampled_masks.replies((group_id, index, len(nearest)) for _, group_id, index, nearest in shown)
    return [
        rollout_id
        for rollout_id, group_id, index, nearest in shown
        if any(
            at is not None and (replies is None or at <= replies)
            for at, replies in zip(nearest, own[group_id, index], strict=True)
        )
    ]


def _pages(ids: list[int]) -> Iterator[list[int]]:
    return (ids[at : at + PAGE] for at in range(0, len(ids), PAGE))


def _between(column: str, least: float | None, most: float | None) -> Q:
    low = Q() if least is None else Q(**{f"{column}__gte": least})
    return low if most is None else low & Q(**{f"{column}__lte": most})
