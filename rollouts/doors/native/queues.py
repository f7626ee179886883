"""Queues over the API: make and read them, take an item, say a word on it, take it back.

A queue is a project's, beyond one run: a token that is bound to a run opens none. Every token belongs to somebody, and
an item that it takes is that person's, as on the pages: with two tokens and a browser they have one turn at an item.
"""

from typing import Any, cast

import msgspec
from django.contrib.auth.models import User
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.native import wire
from rollouts.doors.native.access import ROLE_FOR, actor_of, check_scope, get_project, token_of
from rollouts.doors.native.curation import LabelOut, label_out
from rollouts.doors.native.runs import integer
from rollouts.errors import Forbidden, NotFound
from rollouts.models import LabelQueue, QueueTurn, Rollout, Scope
from rollouts.selectors import agreement, label_queues
from rollouts.services.curation import filters, queues, turns
from rollouts.services.curation.filters import QueueFilter
from rollouts.storable import is_uuid

PAGE = 100


class QueueIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A queue to make."""

    name: str
    project: str | None = None
    unit: str = "group"
    """What an item is: `group`, `rollout`, or `pair`, two rollouts of a group."""
    filter: QueueFilter = QueueFilter()
    source: str = ""
    """Key of another queue: this one then holds what people disagree on there, and a word decides."""
    guideline: str = ""
    tags: list[str] = []
    words_per_item: int = 1
    is_blind: bool = False
    """Whether the words of others are shown to nobody before it is closed."""
    on_reject: str = ""
    """What a word *reject* does besides: `reject` or `exclude` the group; empty: nothing."""
    lease_s: int = 600
    """So long an item is one person's alone."""
    people: list[str] = []
    """Who alone is given items, by username; empty: every curator of the project."""


class GuidelineIn(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class PeopleIn(msgspec.Struct, forbid_unknown_fields=True):
    people: list[str]
    """Usernames; empty: every curator of the project."""


class QueueOut(msgspec.Struct, kw_only=True):
    """A queue, and how far it is."""

    queue: str
    name: str
    project: str
    unit: str
    filter: dict[str, Any]
    """What differs from a filter that lets everything in."""
    source: str | None
    tags: list[str]
    words_per_item: int
    is_blind: bool
    on_reject: str
    lease_s: int
    people: list[str]
    guideline: str
    """Its newest version."""
    guideline_version: int
    actor: str
    created_at: str
    closed_at: str | None
    items: int
    """That it has; it fills itself when somebody asks for one."""
    done: int
    """Of these, how many want no more words."""


class QueuesOut(msgspec.Struct):
    queues: list[QueueOut]
    next_before: int | None
    """Pass as ``before`` for the next page; null on the last."""


class AgreementOut(msgspec.Struct):
    """How far people agree: `alpha` is Krippendorff's, nominal; null where it is not defined."""

    words: agreement.Agreement
    people: list[agreement.Agreement]
    tags: list[agreement.Agreement]
    disagreements: int


class RolloutOut(msgspec.Struct, kw_only=True):
    """A rollout to look at."""

    rollout: int
    """Number in its group."""
    reward: float | None
    """Null also in a pair: it would decide."""
    stop_reason: str
    messages: list[Any]


class TurnOut(msgspec.Struct, kw_only=True):
    """An item that is yours for a while."""

    turn: str
    """Say a word on it with this."""
    run: str
    group: str
    rollout: int | None
    """Null: the whole group is meant."""
    other: int | None
    """What it is compared with, in a queue of pairs."""
    left: str | None
    """Of a pair which one to show left, `first` or `other`: drawn, so that preferring a side decides nothing."""
    expires_at: str
    rollouts: list[RolloutOut]


class TakenOut(msgspec.Struct):
    item: TurnOut | None
    """Null: there is nothing to look at now."""


class WordIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What you say of the item of a turn."""

    turn: str
    verdict: str
    """`accept`, `reject` or `skip`; in a queue of pairs `accept`, with a preference, or `skip`."""
    preference: str = ""
    """Of a pair which is better: `first` (the rollout), `other` or `tie`."""
    tags: list[str] = []
    score: float | None = None
    note: str = ""
    seconds: float | None = None
    edited: list[dict[str, Any]] | None = None
    """In a queue of rollouts: all its messages, with other text in what the policy said."""


class QueuesApi(APIView):
    """`/queues`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="listQueues",
        parameters=[OpenApiParameter("before", int, description="Queues older than this cursor.")],
        responses=wire.answer(QueuesOut),
    )
    def get(self, request: Request) -> Response:
        """Queues of your projects, or of your token's, newest first, 100 a page."""
        found = _opened(request, Scope.READ).order_by("-id")
        if (before := integer(request, "before")) is not None:
            found = found.filter(pk__lt=before)
        page = list(label_queues.with_counts(found).prefetch_related("people", "guidelines")[:PAGE])
        return Response(
            wire.json(QueuesOut([_queue(each) for each in page], page[-1].pk if len(page) == PAGE else None))
        )

    @extend_schema(
        operation_id="makeQueue",
        request=wire.body(QueueIn),
        responses={(201, "application/json"): wire.schema_of(QueueOut)},
    )
    def post(self, request: Request) -> Response:
        """Make a queue. It fills itself with what its filter lets in, or with what people disagree on in another."""
        asked = wire.decode(request, QueueIn)
        project = get_project(request, asked.project, Scope.CURATE)
        options = {name: getattr(asked, name) for name in QueueIn.__struct_fields__ if name != "project"}
        made = queues.create(project, actor=actor_of(request), **options)
        return Response(wire.json(_shown(request, made.key, Scope.CURATE)), status=201)


class QueueApi(APIView):
    """`/queues/<queue>`"""

    @extend_schema(operation_id="showQueue", responses=wire.answer(QueueOut))
    def get(self, request: Request, queue_key: str) -> Response:
        """A queue: what it holds, for whom, and how far it is."""
        return Response(wire.json(_shown(request, queue_key, Scope.READ)))


class GuidelineApi(APIView):
    """`/queues/<queue>/guideline`"""

    parser_classes = [wire.RawParser]

    @extend_schema(operation_id="guideQueue", request=wire.body(GuidelineIn), responses=wire.answer(QueueOut))
    def post(self, request: Request, queue_key: str) -> Response:
        """Give it a new version of its guideline, by which words are said from now on."""
        queue = _get(request, queue_key, Scope.CURATE)
        queues.guide(queue, wire.decode(request, GuidelineIn).text, actor=actor_of(request))
        return Response(wire.json(_shown(request, queue_key, Scope.CURATE)))


class AssignApi(APIView):
    """`/queues/<queue>/people`"""

    parser_classes = [wire.RawParser]

    @extend_schema(operation_id="assignQueue", request=wire.body(PeopleIn), responses=wire.answer(QueueOut))
    def post(self, request: Request, queue_key: str) -> Response:
        """Say who alone is given items from now on."""
        queues.assign(_get(request, queue_key, Scope.CURATE), wire.decode(request, PeopleIn).people)
        return Response(wire.json(_shown(request, queue_key, Scope.CURATE)))


class CloseApi(APIView):
    """`/queues/<queue>/close`"""

    @extend_schema(operation_id="closeQueue", request=None, responses=wire.answer(QueueOut))
    def post(self, request: Request, queue_key: str) -> Response:
        """Give out nothing any more. What was said stays, and of a blind queue can be read."""
        queues.close(_get(request, queue_key, Scope.CURATE))
        return Response(wire.json(_shown(request, queue_key, Scope.CURATE)))


class AgreementApi(APIView):
    """`/queues/<queue>/agreement`"""

    @extend_schema(operation_id="readAgreement", responses=wire.answer(AgreementOut))
    def get(self, request: Request, queue_key: str) -> Response:
        """How far people agree in a queue; of pairs on which is better."""
        found = agreement.of_queue(_get(request, queue_key, Scope.READ))
        return Response(wire.json(AgreementOut(found.words, found.people, found.tags, found.disagreements)))


class TakeApi(APIView):
    """`/queues/<queue>/take`"""

    @extend_schema(operation_id="takeItem", request=None, responses=wire.answer(TakenOut))
    def post(self, request: Request, queue_key: str) -> Response:
        """The item that is yours, or the next one. Asked again before a word, it is the same one, for another while."""
        queue, user = _get(request, queue_key, Scope.CURATE), cast(User, request.user)
        turn = turns.take(queue, user)
        return Response(wire.json(TakenOut(None if turn is None else _turn(turn, user))))


class WordApi(APIView):
    """`/queues/<queue>/word`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="sayWord",
        request=wire.body(WordIn),
        responses={(201, "application/json"): wire.schema_of(LabelOut)},
    )
    def post(self, request: Request, queue_key: str) -> Response:
        """Say a word on an item that is yours. The same turn again gives the word that was said."""
        queue, user = _get(request, queue_key, Scope.CURATE), cast(User, request.user)
        said = wire.decode(request, WordIn)
        own = QueueTurn.objects.filter(item__queue=queue, person=user)
        turn = own.filter(key=said.turn).first() if is_uuid(said.turn) else None
        if turn is None:
            raise NotFound("This item is not yours.")
        values = {name: getattr(said, name) for name in WordIn.__struct_fields__ if name != "turn"}
        label = turns.answer(turn, user=user, actor=actor_of(request), **values)
        label.refresh_from_db(fields=["at"])
        return Response(wire.json(label_out(label)), status=201)


class TakeBackApi(APIView):
    """`/queues/<queue>/undo`"""

    @extend_schema(operation_id="takeBackWord", request=None, responses=wire.answer(TakenOut))
    def post(self, request: Request, queue_key: str) -> Response:
        """Take back your newest word, and what it did; its item is yours again."""
        queue, user = _get(request, queue_key, Scope.CURATE), cast(User, request.user)
        return Response(wire.json(TakenOut(_turn(turns.undo(queue, user, actor=actor_of(request)), user))))


def _opened(request: Request, scope: Scope) -> Any:
    """The queues with which the caller may do this, as far as one may see them. Raises Forbidden."""
    check_scope(request, scope)
    token, found = token_of(request), label_queues.list_queues(request.user)
    if token is None:
        return found
    if token.run_id is not None:
        raise Forbidden("This token is bound to one run, and a queue is beyond one.")
    return found.filter(project=token.project_id)


def _get(request: Request, key: str, scope: Scope) -> LabelQueue:
    """A queue, if the caller may do this with it. Raises NotFound or Forbidden."""
    if not _opened(request, scope).filter(key=key).exists():
        raise NotFound(f"There is no queue {key}, or you may not see it.")
    return label_queues.get(request.user, key, ROLE_FOR[scope])


def _shown(request: Request, key: str, scope: Scope) -> QueueOut:
    found = _get(request, key, scope)
    return _queue(label_queues.with_counts(LabelQueue.objects.filter(pk=found.pk)).get())


def _queue(queue: LabelQueue) -> QueueOut:
    chosen, plain = (msgspec.to_builtins(each) for each in (filters.filter_of(queue), QueueFilter()))
    newest = max(queue.guidelines.all(), key=lambda guideline: guideline.version)
    return QueueOut(
        queue=queue.key,
        name=queue.name,
        project=queue.project.slug,
        unit=queue.unit,
        filter={name: value for name, value in chosen.items() if value != plain[name]},
        source=queue.source.key if queue.source else None,
        tags=queue.tags,
        words_per_item=queue.words_per_item,
        is_blind=queue.is_blind,
        on_reject=queue.on_reject,
        lease_s=queue.lease_s,
        people=sorted(person.username for person in queue.people.all()),
        guideline=newest.text,
        guideline_version=newest.version,
        actor=queue.actor,
        created_at=queue.created_at.isoformat(),
        closed_at=queue.closed_at.isoformat() if queue.closed_at else None,
        items=queue.total,  # type: ignore[attr-defined]
        done=queue.done,  # type: ignore[attr-defined]
    )


def _turn(turn: QueueTurn, user: User) -> TurnOut:
    item = turn.item
    members: list[Rollout] = [each for each in (item.rollout, item.other) if each is not None]
    return TurnOut(
        turn=str(turn.key),
        run=item.group.run.key,
        group=item.group.key,
        rollout=item.rollout.index if item.rollout else None,
        other=item.other.index if item.other else None,
        left=label_queues.standing_left(item, user).value if item.other else None,
        expires_at=turn.expires_at.isoformat(),
        rollouts=[
            RolloutOut(
                rollout=each.index,
                reward=None if item.other else each.reward,
                stop_reason=each.stop_reason,
                messages=each.messages,
            )
            for each in members or item.group.rollouts.order_by("index")
        ],
    )
