"""What people say of groups: a word of each person on each thing, the newest counts, and none is lost.

A word changes neither what is trained nor what is exported; acts do (`services.curation.acts`).
"""

import math
from collections.abc import Sequence
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from rollouts.errors import Conflict, Invalid
from rollouts.models import Guideline, Label, LabelPreference, LabelVerdict, Rollout, ScoredGroup
from rollouts.models.curation import MAX_NOTE, MAX_TAG, MAX_TAGS
from rollouts.services.curation import edits
from rollouts.states import GroupState
from rollouts.storable import FINITE, UNNAMABLE, UNSTORABLE, is_name, is_storable

MAX_SECONDS = 86_400.0
_UNDECIDED = (LabelVerdict.SKIP, LabelVerdict.WITHDRAWN)
"""Verdicts that say of two rollouts not which is better."""


def say(
    group: ScoredGroup,
    *,
    user: User,
    actor: str,
    verdict: str,
    rollout: int | None = None,
    other: int | None = None,
    preference: str = "",
    tags: Sequence[str] = (),
    score: float | None = None,
    note: str = "",
    seconds: float | None = None,
    edited: Sequence[dict[str, Any]] | None = None,
    guideline: Guideline | None = None,
) -> Label:
    """Store what a person says of a group, of its rollout number ``rollout``, or of that beside number ``other``.

    ``edited`` are all messages of that rollout, with other text in what the policy said. The word supersedes what the
    person said of the same before, in the same queue or outside of any. The caller has made sure that the user may
    curate. Raises Invalid, and Conflict where the same person says two things of the same at the same
    moment.
    """
    fields = _faults(verdict, preference, tags, score, note, seconds)
    members = dict(Rollout.objects.filter(group=group).values_list("index", "pk"))
    for name, index in (("rollout", rollout), ("other", other)):
        if index is not None and index not in members:
            fields[name] = f"must be one of the group's {len(members)} rollouts, counted from 0"
    is_decided = verdict not in _UNDECIDED
    is_pair = other is not None and rollout is not None and rollout != other
    if (preference and not (is_pair and is_decided)) or (other is not None and not (preference or not is_decided)):
        fields["preference"] = "goes with two rollouts, unless they are skipped: which of rollout and other is better"
    elif other is not None and not is_pair:
        fields["other"] = "must be another rollout than the one that it is compared with"
    if edited is not None and not fields and (fault := _edit_fault(group, rollout, other, edited)):
        fields["edited"] = fault
    if group.state == GroupState.PLAYING:
        fields["group"] = "is still being played: there is nothing to look at yet"
    if fields:
        raise Invalid(
            f"Nothing was stored: {', '.join(f'{name} {fault}' for name, fault in fields.items())}.", fields=fields
        )
    subject = {
        "person": user,
        "group": group,
        "rollout_id": None if rollout is None else members[rollout],
        "other_id": None if other is None else members[other],
        "queue_id": None if guideline is None else guideline.queue_id,
    }
    try:
        with transaction.atomic():
            return Label.objects.create(
                **subject,
                run_id=group.run_id,
                actor=actor,
                verdict=verdict,
                preference=preference,
                tags=list(dict.fromkeys(tags)),
                score=score,
                note=note,
                seconds=seconds,
                edited=None if edited is None else list(edited),
                guideline=guideline,
                supersedes=Label.objects.filter(**subject, superseded_by__isnull=True).first(),
            )
    except IntegrityError:
        raise Conflict("You said something else of it at the same moment. Look at it, and say it again.") from None


def _edit_fault(group: ScoredGroup, rollout: int | None, other: int | None, edited: Sequence[dict[str, Any]]) -> str:
    if rollout is None or other is not None:
        return "goes with one rollout"
    return edits.fault(Rollout.objects.values_list("messages", flat=True).get(group=group, index=rollout), edited)


def _faults(
    verdict: str, preference: str, tags: Sequence[str], score: float | None, note: str, seconds: float | None
) -> dict[str, str]:
    fields = {}
    if verdict not in LabelVerdict.values:
        fields["verdict"] = f"must be one of {', '.join(LabelVerdict.values)}"
    if preference not in ("", *LabelPreference.values):
        fields["preference"] = f"must be one of {', '.join(LabelPreference.values)}"
    if len(set(tags)) > MAX_TAGS:
        fields["tags"] = f"must be at most {MAX_TAGS}"
    elif not all(0 < len(tag) <= MAX_TAG and is_name(tag) and is_storable(tag) for tag in tags):
        fields["tags"] = f"must have 1 to {MAX_TAG} characters each; none {UNNAMABLE.removesuffix(': no name may')}"
    if score is not None and not abs(score) <= FINITE:
        fields["score"] = "must be a finite number"
    if len(note) > MAX_NOTE:
        fields["note"] = f"must have at most {MAX_NOTE} characters"
    elif not is_storable(note):
        fields["note"] = UNSTORABLE
    if seconds is not None and not (math.isfinite(seconds) and 0 <= seconds <= MAX_SECONDS):
        fields["seconds"] = f"must be 0 to {MAX_SECONDS:.0f}"
    return fields
