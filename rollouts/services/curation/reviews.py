"""People in the loop of a run: groups that are held until somebody scored or accepted them (`environments[].review`).

    scored ─► held ─► ready, or filtered by the rewards that people gave     all was scored, or the group accepted
                 ├──► rejected                                              the group was rejected
                 └──► ready or surplus, or filtered as any other            nobody looked at it in time

What an environment gave stays with the rollouts; what counts is `ScoredGroup.given_rewards`.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from rollouts.models import Act, Label, LabelVerdict, Rollout, Run, ScoredGroup, Verb
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.curation import acts, labels
from rollouts.services.groups import problems
from rollouts.services.groups.verdicts import scores, verdict_after_review
from rollouts.services.transitions import transition
from rollouts.states import GroupState
from trainers.run_config import ReviewConfig

_VERDICTS = {LabelVerdict.ACCEPT.value: 1.0, LabelVerdict.REJECT.value: 0.0}
_AT_ONCE = 500
"""Groups whose deadline is over that one look lets go: other runs are looked at as well."""


def say(group: ScoredGroup, *, user: User, actor: str, verdict: str, **said: Any) -> Label:
    """As `labels.say`; a group that is held for such a word goes on. Locks the group's row while it is held."""
    with transaction.atomic():
        label = labels.say(group, user=user, actor=actor, verdict=verdict, **said)
        conclude(group, label, user=user, actor=actor)
    return label


def conclude(group: ScoredGroup, said: Label, *, user: User, actor: str) -> Act | None:
    """Let a held group go on if people have said enough of it; return the act that rejected it, if one did.

    The word that was ``said`` just now may reject it. One that stands from before did so: that was undone. Of a group
    that is not held nothing changes. Locks the group's row.
    """
    if group.review_until is None:
        return None
    with transaction.atomic():
        row = ScoredGroup.objects.select_for_update(of=("self",), no_key=True).select_related("run", "environment")
        group = row.get(pk=group.pk)
        if group.state != GroupState.HELD:
            return None
        if said.verdict == LabelVerdict.REJECT and said.rollout_id is None and said.other_id is None:
            return acts.perform(group.run, Verb.REJECT, [group.pk], user=user, actor=actor)
        words = Label.objects.filter(group=group, superseded_by__isnull=True, other__isnull=True)
        is_accepted = words.filter(rollout__isnull=True, verdict=LabelVerdict.ACCEPT).exists()
        reviewed = _reviewed(group, words)
        if is_accepted or all(each.is_over for each in reviewed):
            _let_go(group, reviewed, actor=actor)
    return None


def expire(run: Run) -> int:
    """Let go of groups that nobody looked at in time: to be trained on the environment's rewards, as far as the run's
    filters let them, or dropped. Return how many. What people gave of a part of a group's rewards counts for nothing
    then."""
    if all(ref.review is None for ref in run.parsed.environments):
        return 0
    late = ScoredGroup.objects.filter(run=run, state=GroupState.HELD, review_until__lte=Now())
    groups_of: defaultdict[str, list[ScoredGroup]] = defaultdict(list)
    for group in late.select_related("environment").order_by("review_until")[:_AT_ONCE]:
        groups_of[group.environment.name].append(group)
    moved = 0
    for name, groups in groups_of.items():
        moved += _expire(run, name, groups)
    return moved


def _expire(run: Run, name: str, groups: Sequence[ScoredGroup]) -> int:
    review = _review_of(run, name)
    unwanted: dict[int, Reason] = {}
    if review.on_deadline == "reward":
        found = ((group.pk, verdict_after_review(run, group, _rewards(group))) for group in groups)
        unwanted = {pk: reason for pk, reason in found if reason is not None}
    moved = [pk for one, reason in unwanted.items() for pk in _end_review([one], GroupState.FILTERED, reason)]
    others = [group.pk for group in groups if group.pk not in unwanted]
    unreviewed = Reason(ReasonCode.UNREVIEWED, deadline_s=review.deadline_s)
    to = GroupState.SURPLUS if review.on_deadline == "drop" else GroupState.READY
    moved += _end_review(others, to, unreviewed)
    if review.on_deadline == "reward":
        for group in groups:
            if group.pk in moved:
                _rate(run, group)
    return len(moved)


def _end_review(ids: Sequence[int], to: GroupState, reason: Reason) -> list[int]:
    return transition(
        ScoredGroup, ids, to=to, expect=[GroupState.HELD], actor="reconciler", reason=reason, review_until=None
    )


def _let_go(group: ScoredGroup, reviewed: "list[_Reviewed]", *, actor: str) -> None:
    counts = [each.reward if each.given is None else each.given for each in reviewed]
    number = sum(each.given is not None for each in reviewed)
    columns: dict[str, Any] = {"review_until": None}
    if number:
        columns |= {"given_rewards": counts} | scores(group.run, group.environment.name, counts)
    dropped = verdict_after_review(group.run, group, counts)
    released = Reason(ReasonCode.REVIEWED, actor=actor, given=number or None)
    to = GroupState.READY if dropped is None else GroupState.FILTERED
    if transition(
        ScoredGroup, [group.pk], to=to, expect=[GroupState.HELD], actor=actor, reason=dropped or released, **columns
    ):
        for name, value in columns.items():
            setattr(group, name, value)
        _rate(group.run, group)


def _rate(run: Run, group: ScoredGroup) -> None:
    """Take a group into the solve rate of its problem: not before it is known which rewards count."""
    scored, solved = group.scored_count or 0, group.solved_count or 0
    problems.rate(run, group, scored=scored, solved=solved, reward_mean=group.reward_mean)


class _Reviewed(NamedTuple):
    """A rollout of a held group."""

    reward: float | None
    """The environment's."""
    given: float | None
    """What people give in its place."""
    is_accepted: bool

    @property
    def is_over(self) -> bool:
        """Whether it waits for nobody: it failed, has a reward from people, or is accepted with the one it has."""
        return self.reward is None or self.given is not None or self.is_accepted


def _rewards(group: ScoredGroup) -> list[float | None]:
    """The environment's, in the order of the rollouts."""
    return list(Rollout.objects.filter(group=group).order_by("index").values_list("reward", flat=True))


def _reviewed(group: ScoredGroup, words: QuerySet[Label]) -> list[_Reviewed]:
    """The rollouts of a group, in their order."""
    review = _review_of(group.run, group.environment.name)
    given: defaultdict[int, list[float]] = defaultdict(list)
    accepted = set[int]()
    for (rollout_id, _), (verdict, score) in _newest(words).items():
        value = score if review.rewards == "scores" else _VERDICTS[verdict]
        if value is not None:
            given[rollout_id].append(value)
        elif verdict == LabelVerdict.ACCEPT:
            accepted.add(rollout_id)
    rollouts = Rollout.objects.filter(group=group).order_by("index").values_list("pk", "reward")
    return [
        _Reviewed(reward, fmean(given[pk]) if pk in given and reward is not None else None, pk in accepted)
        for pk, reward in rollouts
    ]


def _newest(words: QuerySet[Label]) -> dict[tuple[int, int | str], tuple[str, float | None]]:
    """(rollout, person) -> the newest accept or reject, and its score.

    What somebody says in a queue and on the group's page supersede each other nowhere, and are one voice all the same.
    """
    said = words.filter(rollout__isnull=False, verdict__in=_VERDICTS).order_by("id")
    columns = said.values_list("rollout", "person", "actor", "verdict", "score")
    # Where the account is gone, who it was by name.
    return {
        (rollout_id, actor if person is None else person): (verdict, score)
        for rollout_id, person, actor, verdict, score in columns
    }


def _review_of(run: Run, environment: str) -> ReviewConfig:
    review = run.parsed.review_of(environment)
    assert review is not None, "only groups of environments with a review are held"
    return review
