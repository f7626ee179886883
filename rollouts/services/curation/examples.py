"""The best rollouts of a run as examples for supervised training, and best beside worst as pairs for DPO.

    ids of the groups, page by page ─► their scored rollouts, best first ─► those that are good enough ─► lines

What people withhold or reject is left out; a rollout that they reject may be the worse one of a pair. A line has the
messages of one branch of a rollout, or its tokens where an environment sent no messages, and says where it is from.
Words of an assistant that the policy did not say are in a `prompt` of their own, and never trained. What trains on it:
`trainers/data/examples.py`. Memory does not grow with the run.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from environments.types import Split, StopReason
from rollouts.formats.examples import Dialogue, Sampled, answer_differently, line_of
from rollouts.formats.examples import branches as read_branches
from rollouts.models import PolicyVersion, Run, RunKind, ScoredGroup
from rollouts.selectors import sampled_masks
from rollouts.services.curation.exchange import EXPORTED, exportable, pages_of
from rollouts.sql import binary_cursor, load
from rollouts.states import GroupState

CURATED = tuple(state for state in EXPORTED if state != GroupState.FAILED)
"""States that are exported unless others are named: every training group that no person rejected."""


def curated_states(run: Run) -> tuple[GroupState, ...]:
    """The states whose groups are to be learned from, unless others are named: of a teacher all that it scored."""
    return (GroupState.EVALUATED,) if is_teaching(run) else CURATED


def is_teaching(run: Run) -> bool:
    """Whether a run plays training problems for others to learn from, and trains nothing itself."""
    plan = run.parsed.evaluation
    return run.kind == RunKind.EVAL and plan is not None and plan.split == Split.TRAIN.value


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rollouts of a group are good enough."""

    best: int | None = 1
    """At most so many of each group, of each of its seats, the best; None: all."""
    min_reward: float | None = None
    """Only with at least this reward. Of a pair it is asked of the chosen answer."""
    min_gap: float = 0.0
    """Of a pair: the chosen answer's reward is higher by more than this."""
    truncated: bool = False
    """Also rollouts that a token budget ended: they teach no end. A pair's rejected answer may always be one."""

    def takes(self, rollout: "_Rollout") -> bool:
        """Whether a rollout may be learned from."""
        is_high = self.min_reward is None or rollout.reward >= self.min_reward
        return not rollout.is_rejected and is_high and (self.truncated or rollout.stop_reason != StopReason.LENGTH)


class _Rollout(msgspec.Struct, frozen=True, array_like=True):
    index: int
    reward: float
    stop_reason: str
    messages: str
    tools: str | None
    earlier_branches: str | None
    seat: str
    is_rejected: bool

    @property
    def told(self) -> dict[str, msgspec.Raw]:
        """The tools that it was told of, as a line has them."""
        return {"tools": msgspec.Raw(self.tools)} if self.tools else {}


def export_examples(
    run: Run,
    selection: Selection,
    *,
    states: Iterable[str] = CURATED,
    environment: str | None = None,
    on_surplus: Callable[[int], None] = lambda count: None,
) -> Iterator[bytes]:
    """The selected rollouts as lines of JSON, one for each branch: groups oldest first, in each the best first.

    `on_surplus` is told of each group, or seat of one, how many were good enough beyond its best.
    """
    for group, rollouts in _groups(run, states, environment):
        good = [rollout for rollout in rollouts if selection.takes(rollout)]
        chosen = good[: selection.best]
        on_surplus(len(good) - len(chosen))
        for rollout in chosen:
            branches = group.branches(rollout)
            forms: list[dict[str, Any]]
            if all(branch.is_asked for branch in branches):
                forms = [_form(branch) | rollout.told for branch in branches]
            else:
                forms = group.sampled.tokens(rollout.index)
            for number, form in enumerate(forms):
                which = {"rollout": rollout.index, **({"branch": number} if len(forms) > 1 else {})}
                yield line_of(form | group.source | which | {"reward": rollout.reward})


def _form(branch: Dialogue) -> dict[str, Any]:
    """All of it where every word of an assistant is the policy's; else what stands before those is never trained."""
    if not branch.shows_assistant:
        return {"messages": branch.parts}
    return {"prompt": branch.parts[: branch.begin], "completion": branch.parts[branch.begin :]}


def export_pairs(
    run: Run, selection: Selection, *, states: Iterable[str] = CURATED, environment: str | None = None
) -> Iterator[bytes]:
    """Of each group its best rollout beside its worst, as lines of JSON, where rewards and answers differ.

    Of a rollout with branches the last one speaks.
    """
    for group, rollouts in _groups(run, states, environment):
        good = [rollout for rollout in rollouts if selection.takes(rollout)]
        if not good or good[0].reward - rollouts[-1].reward <= selection.min_gap:
            continue
        chosen, rejected = good[0], rollouts[-1]
        form: dict[str, Any]
        better, worse = group.branches(chosen)[-1], group.branches(rejected)[-1]
        if better.is_asked and worse.is_asked and answer_differently(better, worse):
            form = {"chosen": better.parts, "rejected": worse.parts, **chosen.told}
        else:
            # Of an endpoint's nobody has any.
            ends = [group.sampled.tokens(rollout.index)[-1:] for rollout in (chosen, rejected)]
            if not all(ends) or ends[0] == ends[1]:
                continue
            form = {"chosen": ends[0][0], "rejected": ends[1][0]}
        rewards = {"chosen_reward": chosen.reward, "rejected_reward": rejected.reward}
        yield line_of(form | group.source | rewards)


@dataclass(frozen=True, slots=True)
class _Group:
    sampled: Sampled
    source: dict[str, Any]
    """Where its lines are from."""

    def branches(self, rollout: _Rollout) -> list[Dialogue]:
        """The rollout as each branch tells it, the last one last."""
        return read_branches(rollout.messages, rollout.earlier_branches, self.sampled, rollout.index)


def _groups(run: Run, states: Iterable[str], environment: str | None) -> Iterator[tuple[_Group, list[_Rollout]]]:
    called = _teachers(run)
    for ids in pages_of(exportable(run, states=states, environment=environment)):
        rollouts: dict[int, list[_Rollout]] = {group_id: [] for group_id in ids}
        sampled = sampled_masks.of_groups(ids)
        with binary_cursor() as cursor:
            cursor.execute(load("curated_rollouts"), {"group_ids": ids, "is_spoken": bool(run.parsed.model.endpoint)})
            for group_id, *rest in cursor:
                rollouts[group_id].append(_Rollout(*rest))
        rows = ScoredGroup.objects.filter(id__in=ids).order_by("id")
        columns = ("id", "key", "problem_key", "environment__name", "environment_version", "max_policy_version")
        for group_id, key, problem_key, name, version, policy_version in rows.values_list(*columns):
            source = {"run": run.key, "group": key, "environment": name, "environment_version": version}
            if called:
                source |= {"teacher": called.get(policy_version, ""), "policy_version": policy_version}
            by_seat: dict[str, list[_Rollout]] = {}
            for rollout in rollouts[group_id]:
                by_seat.setdefault(rollout.seat, []).append(rollout)
            for seat, own in by_seat.items():
                yield (
                    _Group(sampled[group_id], source | {"problem_key": problem_key} | ({"seat": seat} if seat else {})),
                    own,
                )


def _teachers(run: Run) -> dict[int | None, str]:
    """Of a run that trains nothing: policy version -> what it is called where it is from."""
    if run.kind != RunKind.EVAL:
        return {}
    versions = PolicyVersion.objects.filter(run=run).select_related("checkpoint__run")
    return {
        row.version: f"{row.checkpoint.run.key}@{row.checkpoint.step}" if row.checkpoint else run.player
        for row in versions
    }
