"""What becomes of a group once it is scored, and the columns that say how it was: a function of the group and its run.

    rewards ─► failed (nobody has one) ─► held (for people to look at) ─► filtered (the run's filters) ─► ready

A group is one problem on one policy version, so its two counts, scored and solved, are the solve rate of that problem
on that version: `rollouts.selectors.difficulty` reads them.
"""

import math
import random
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from django.db.models import Q

from environments.types import StopReason
from rollouts.formats.arrays import PackedGroup, RolloutRecord
from rollouts.formats.atropos.extras import zeroed
from rollouts.models import GroupTokens, Purpose, Run, RunKind, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.transitions import DbTime
from rollouts.states import GroupState
from trainers.advantages import algorithm_advantages, are_equal, deviation
from trainers.run_config import AlgorithmConfig, FiltersConfig


def verdict(run: Run, purpose: str, group: PackedGroup) -> tuple[GroupState, Reason | None]:
    """Where a settled group goes, and why it is dropped if it is."""
    rewards = _rewards(group)
    if not rewards:
        error = next(rollout.error for rollout in group.rollouts if rollout.stop_reason is StopReason.ERROR)
        first = f"{error.kind}: {error.type}: {error.message}" if error else None
        return GroupState.FAILED, Reason(ReasonCode.ALL_FAILED, error=first)
    if purpose == Purpose.EVAL:
        return GroupState.EVALUATED, None
    is_scored = np.array([rollout.reward is not None for rollout in group.rollouts])
    if not group.arrays.trained_counts[is_scored].any():
        return GroupState.FAILED, Reason(ReasonCode.NOTHING_SAMPLED)
    algorithm, review = run.parsed.algorithm, run.parsed.review_of(group.environment)
    if review is not None and random.random() < review.share:
        return GroupState.HELD, None
    reason = _unwanted(algorithm.filters, rewards, run.parsed.solved_at(group.environment))
    if reason is None and algorithm.filter_zero_advantage:
        reason = _without_gradient(run.parsed.algorithm_of(group.environment), group)
    return (GroupState.READY, None) if reason is None else (GroupState.FILTERED, reason)


def held_until(run: Run, environment: str, state: str) -> DbTime | None:
    """Until when a group that goes to a state is held; None: it is not."""
    review = run.parsed.review_of(environment) if state == GroupState.HELD else None
    return None if review is None else DbTime(review.deadline_s)


def verdict_after_review(run: Run, group: ScoredGroup, rewards: Sequence[float | None]) -> Reason | None:
    """Why a group that people looked at is dropped all the same; None when it may be trained. ``rewards``: those that
    count, in rollout order."""
    scored = [reward for reward in rewards if reward is not None]
    algorithm, solved_at = run.parsed.algorithm, run.parsed.solved_at(group.environment.name)
    if (reason := _unwanted(algorithm.filters, scored, solved_at)) is not None or not algorithm.filter_zero_advantage:
        return reason
    lacks = {"no_reference": Q(ref_logprobs__isnull=True), "no_advantages": Q(advantages__isnull=True)}
    tokens = GroupTokens.objects.filter(group=group)
    [(lacks_reference, lacks_advantages, extras)] = tokens.annotate(**lacks).values_list(*lacks, "extras")
    facts = group.rollouts.order_by("index").values_list("trained_token_count", "stop_reason", "seat")
    lengths, stops, seats = zip(*facts, strict=True)
    own = run.parsed.algorithm_of(group.environment.name)
    advantages = _advantages(own, rewards, lengths, stops, seats, zeroed(extras))
    if not _is_any_trained(advantages):
        return Reason(ReasonCode.NO_ADVANTAGE)
    if any(advantages) or not lacks_advantages:
        return None
    # Whether the environment spoke after the policy only its tokens tell: where that would matter the group is kept.
    if algorithm.gradient_without_advantage(has_reference=not lacks_reference, has_echo=True):
        return None
    return Reason(ReasonCode.ZERO_ADVANTAGE if are_equal(rewards, seats) else ReasonCode.NO_ADVANTAGE)


def scores(run: Run, environment: str, rewards: Sequence[float | None]) -> dict[str, Any]:
    """The columns that say what rewards a group has."""
    scored = [reward for reward in rewards if reward is not None]
    return {
        "reward_mean": math.fsum(scored) / len(scored) if scored else None,
        "reward_std": deviation(scored, ddof=0) if scored else None,
        "scored_count": len(scored),
        "solved_count": _solved(scored, run.parsed.solved_at(environment)),
    }


def summary(run: Run, group: PackedGroup) -> dict[str, Any]:
    """The columns that lists and batch formation read instead of the rollouts."""
    rollouts, fallback = group.rollouts, _unversioned(run)
    oldest = [_first(r.dispatch_policy_version, r.first_policy_version, fallback) for r in rollouts]
    newest = [_newest(rollout, fallback) for rollout in rollouts]
    return {
        "rollout_count": len(rollouts),
        "token_count": len(group.arrays.token_ids),
        **scores(run, group.environment, _rewards(group)),
        "min_policy_version": min(oldest),
        "max_policy_version": max(*newest, *oldest),
    }


def _rewards(group: PackedGroup) -> list[float]:
    return [rollout.reward for rollout in group.rollouts if rollout.reward is not None]


def _solved(rewards: Sequence[float], solved_at: float) -> int:
    return sum(reward >= solved_at for reward in rewards)


def _unwanted(filters: FiltersConfig, rewards: Sequence[float], solved_at: float) -> Reason | None:
    """Which of the run's filters drops a group with these rewards, the first that does."""
    solved = _solved(rewards, solved_at)
    if filters.all_solved and solved == len(rewards):
        return Reason(ReasonCode.ALL_SOLVED, solved_at=solved_at)
    if filters.none_solved and solved == 0:
        return Reason(ReasonCode.NONE_SOLVED, solved_at=solved_at)
    if (difference := max(rewards) - min(rewards)) < filters.min_reward_range:
        return Reason(ReasonCode.NARROW_REWARDS, least=filters.min_reward_range, range=difference)
    return None


def _without_gradient(algorithm: AlgorithmConfig, group: PackedGroup) -> Reason | None:
    """Why training on the group would change nothing; None when it would."""
    arrays = group.arrays
    facts = ((rollout.reward, rollout.stop_reason, rollout.seat) for rollout in group.rollouts)
    rewards, stops, seats = zip(*facts, strict=True)
    lengths = arrays.trained_counts.tolist()
    advantages = _advantages(algorithm, rewards, lengths, stops, seats, zeroed(group.extras))
    if not _is_any_trained(advantages):
        return Reason(ReasonCode.NO_ADVANTAGE)
    is_trained = np.array([advantage is not None for advantage in advantages])
    if arrays.advantages is None:
        has_advantage = any(advantages)
    else:
        has_advantage = bool((arrays.advantages * arrays.loss_mask)[np.repeat(is_trained, arrays.lengths)].any())
    has_reference, has_echo = arrays.ref_logprobs is not None, arrays.has_answers(is_trained)
    if has_advantage or algorithm.gradient_without_advantage(has_reference=has_reference, has_echo=has_echo):
        return None
    if arrays.advantages is not None:
        return Reason(ReasonCode.ZERO_TOKEN_ADVANTAGES)
    return Reason(ReasonCode.ZERO_ADVANTAGE if are_equal(rewards, seats) else ReasonCode.NO_ADVANTAGE)


def _advantages(
    algorithm: AlgorithmConfig,
    rewards: Sequence[float | None],
    lengths: Sequence[int],
    stops: Sequence[str],
    seats: Sequence[str],
    zeroed: Collection[int],
) -> list[float | None]:
    """The advantage of each rollout as a batch would have it; None of those that are left out of training."""
    is_cut = [stop == StopReason.LENGTH for stop in stops]
    advantages = algorithm_advantages(algorithm, rewards, lengths, is_cut, seats, zeroed)
    return [advantage if length else None for advantage, length in zip(advantages, lengths, strict=True)]


def _is_any_trained(advantages: Sequence[float | None]) -> bool:
    return any(advantage is not None for advantage in advantages)


def _unversioned(run: Run) -> int:
    """The version of rollouts that name none: what we serve, or the step at which they came when others serve."""
    return run.next_step if run.kind == RunKind.EXTERNAL else max(run.live_version, 0)


def _newest(rollout: RolloutRecord, fallback: int) -> int:
    return _first(rollout.last_policy_version, rollout.first_policy_version, rollout.dispatch_policy_version, fallback)


def _first(*versions: int | None) -> int:
    return next(version for version in versions if version is not None)
