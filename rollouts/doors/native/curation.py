"""Say what one thinks of groups, and reject, exclude or restore them."""

from typing import Annotated, Any, cast

import msgspec
from django.contrib.auth.models import User
from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import Meta
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.native import wire
from rollouts.doors.native.access import actor_of, get_run
from rollouts.doors.native.runs import integer
from rollouts.errors import Invalid
from rollouts.models import Act, Label, Scope, ScoredGroup, Verb
from rollouts.selectors import curation, groups
from rollouts.services.curation import acts, reviews

PAGE = 100
MOST_GROUPS = 1_000
_BEFORE = OpenApiParameter("before", int, description="Only those older than this cursor.")


class LabelIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What you say of a group. It takes the place of what you said of the same thing before; that is kept."""

    group: str
    """Key of the group."""
    verdict: str
    """`accept`, `reject`, `skip`, or `withdrawn`, which takes back what you said."""
    rollout: int | None = None
    """Number of the rollout in the group that is meant, from 0; null: the whole group."""
    other: int | None = None
    """Number of the rollout that it is compared with."""
    preference: str = ""
    """Which of the two is better: `first`, `other` or `tie`."""
    tags: list[str] = []
    score: float | None = None
    note: str = ""
    seconds: float | None = None
    """That you spent on it."""
    edited: list[dict[str, Any]] | None = None
    """All messages of the rollout, with other text in what the policy said: what it should have said."""


class LabelOut(LabelIn, kw_only=True):
    """What somebody said."""

    queue: str | None
    """In which it was said."""
    is_adjudicated: bool
    """Whether it decided there what people disagreed on."""

    label: str
    actor: str
    supersedes: str | None
    at: str


class LabelsOut(msgspec.Struct):
    labels: list[LabelOut]
    next_before: int | None
    """Pass as ``before`` for the next page; null on the last."""


class ActIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to do with groups."""

    verb: str
    """`reject`: never trained if it is in no batch yet, and not exported. `exclude`: not exported. `restore`: both
    again."""
    groups: Annotated[list[str], Meta(min_length=1, max_length=MOST_GROUPS)]
    """Their keys. Those that are still played, or are so already, are left alone."""
    note: str = ""


class UndoIn(msgspec.Struct, forbid_unknown_fields=True):
    note: str = ""


class ActOut(msgspec.Struct, kw_only=True):
    """What somebody did with groups."""

    act: str
    verb: str
    actor: str
    note: str
    at: str
    groups: int
    """How many it changed."""
    undoes: str | None
    undone_by: str | None


class ActsOut(msgspec.Struct):
    acts: list[ActOut]
    next_before: int | None
    """Pass as ``before`` for the next page; null on the last."""


class LabelsApi(APIView):
    """`/runs/<key>/labels`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="readLabels",
        parameters=[_BEFORE, OpenApiParameter("group", str, description="Only those on this group.")],
        responses=wire.answer(LabelsOut),
    )
    def get(self, request: Request, key: str) -> Response:
        """What people say of the run's groups and counts now, newest first, 100 a page."""
        run = get_run(request, key, Scope.READ)
        words = curation.words(run)
        if (group := request.query_params.get("group")) is not None:
            words = words.filter(group=groups.get(run, group))
        if (before := integer(request, "before")) is not None:
            words = words.filter(pk__lt=before)
        page = list(words.select_related("supersedes")[:PAGE])
        cursor = page[-1].pk if len(page) == PAGE else None
        return Response(wire.json(LabelsOut([label_out(label) for label in page], cursor)))

    @extend_schema(
        operation_id="addLabel",
        request=wire.body(LabelIn),
        responses={(201, "application/json"): wire.schema_of(LabelOut)},
    )
    def post(self, request: Request, key: str) -> Response:
        """Say something of a group, of a rollout or of two beside each other. It changes nothing that is trained."""
        run = get_run(request, key, Scope.CURATE)
        said = wire.decode(request, LabelIn)
        group = groups.get(run, said.group)
        values = {name: getattr(said, name) for name in LabelIn.__struct_fields__ if name != "group"}
        label = reviews.say(group, user=cast(User, request.user), actor=actor_of(request), **values)
        label.refresh_from_db(fields=["at"])
        return Response(wire.json(label_out(label)), status=201)


class ActsApi(APIView):
    """`/runs/<key>/acts`"""

    parser_classes = [wire.RawParser]

    @extend_schema(operation_id="readActs", parameters=[_BEFORE], responses=wire.answer(ActsOut))
    def get(self, request: Request, key: str) -> Response:
        """What was done with the run's groups, newest first, 100 a page."""
        done = curation.acts(get_run(request, key, Scope.READ))
        if (before := integer(request, "before")) is not None:
            done = done.filter(pk__lt=before)
        page = list(done[:PAGE])
        cursor = page[-1].pk if len(page) == PAGE else None
        return Response(wire.json(ActsOut([_act(act) for act in page], cursor)))

    @extend_schema(
        operation_id="actOnGroups",
        request=wire.body(ActIn),
        responses={(201, "application/json"): wire.schema_of(ActOut)},
    )
    def post(self, request: Request, key: str) -> Response:
        """Reject, exclude or restore groups, as one act."""
        run = get_run(request, key, Scope.CURATE)
        asked = wire.decode(request, ActIn)
        found = dict(ScoredGroup.objects.filter(run=run, key__in=asked.groups).values_list("key", "pk"))
        if unknown := [group for group in asked.groups if group not in found]:
            faults = {f"groups.{asked.groups.index(group)}": "is no group of this run" for group in unknown}
            raise Invalid(f"Nothing was done: {len(faults)} of the groups are none of run {run.key}.", fields=faults)
        if asked.verb not in (Verb.REJECT, Verb.EXCLUDE, Verb.RESTORE):
            raise Invalid("Nothing was done.", fields={"verb": "must be reject, exclude or restore"})
        user, actor = cast(User, request.user), actor_of(request)
        act = acts.perform(run, Verb(asked.verb), found.values(), user=user, actor=actor, note=asked.note)
        return Response(wire.json(_act(curation.act(run, act.key))), status=201)


class UndoApi(APIView):
    """`/runs/<key>/acts/<act>/undo`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="undoAct",
        request=wire.body(UndoIn),
        responses={(201, "application/json"): wire.schema_of(ActOut)},
    )
    def post(self, request: Request, key: str, act: str) -> Response:
        """Undo an act: its groups are as they were before it, but for those that somebody acted on since."""
        run = get_run(request, key, Scope.CURATE)
        asked = wire.decode(request, UndoIn)
        user, actor = cast(User, request.user), actor_of(request)
        undoing = acts.undo(curation.act(run, act), user=user, actor=actor, note=asked.note)
        return Response(wire.json(_act(curation.act(run, undoing.key))), status=201)


def label_out(label: Label) -> LabelOut:
    """A label as the API says it."""
    return LabelOut(
        label=label.key,
        group=label.group.key,
        verdict=label.verdict,
        rollout=label.rollout.index if label.rollout else None,
        other=label.other.index if label.other else None,
        preference=label.preference,
        tags=label.tags,
        score=label.score,
        note=label.note,
        seconds=label.seconds,
        edited=label.edited,
        queue=label.queue.key if label.queue else None,
        is_adjudicated=label.queue is not None and label.queue.source_id is not None,
        actor=label.actor,
        supersedes=label.supersedes.key if label.supersedes else None,
        at=label.at.isoformat(),
    )


def _act(act: Act) -> ActOut:
    return ActOut(
        act=act.key,
        verb=act.verb,
        actor=act.actor,
        note=act.note,
        at=act.at.isoformat(),
        groups=act.groups,  # type: ignore[attr-defined]
        undoes=act.undoes.key if act.undoes else None,
        undone_by=act.undone_by.key if hasattr(act, "undone_by") else None,
    )
