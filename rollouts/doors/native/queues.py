"""Queues over the API: make and read them, say who is given items, close them; how far people agree.

A queue is a project's, beyond one run: a token that is bound to a run opens none.
"""

from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.native import wire
from rollouts.doors.native.access import ROLE_FOR, actor_of, check_scope, get_project, token_of
from rollouts.doors.native.runs import integer
from rollouts.errors import Forbidden, NotFound
from rollouts.models import LabelQueue, Scope
from rollouts.selectors import agreement, label_queues
from rollouts.services.curation import filters, queues
from rollouts.services.curation.filters import QueueFilter

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
        queue = get_queue(request, queue_key, Scope.CURATE)
        queues.guide(queue, wire.decode(request, GuidelineIn).text, actor=actor_of(request))
        return Response(wire.json(_shown(request, queue_key, Scope.CURATE)))


class AssignApi(APIView):
    """`/queues/<queue>/people`"""

    parser_classes = [wire.RawParser]

    @extend_schema(operation_id="assignQueue", request=wire.body(PeopleIn), responses=wire.answer(QueueOut))
    def post(self, request: Request, queue_key: str) -> Response:
        """Say who alone is given items from now on."""
        queues.assign(get_queue(request, queue_key, Scope.CURATE), wire.decode(request, PeopleIn).people)
        return Response(wire.json(_shown(request, queue_key, Scope.CURATE)))


class CloseApi(APIView):
    """`/queues/<queue>/close`"""

    @extend_schema(operation_id="closeQueue", request=None, responses=wire.answer(QueueOut))
    def post(self, request: Request, queue_key: str) -> Response:
        """Give out nothing any more. What was said stays, and of a blind queue can be read."""
        queues.close(get_queue(request, queue_key, Scope.CURATE))
        return Response(wire.json(_shown(request, queue_key, Scope.CURATE)))


class AgreementApi(APIView):
    """`/queues/<queue>/agreement`"""

    @extend_schema(operation_id="readAgreement", responses=wire.answer(AgreementOut))
    def get(self, request: Request, queue_key: str) -> Response:
        """How far people agree in a queue; of pairs on which is better."""
        found = agreement.shown_to(get_queue(request, queue_key, Scope.READ), request.user)
        if found is None:
            raise Forbidden(agreement.HIDDEN)
        return Response(wire.json(AgreementOut(found.words, found.people, found.tags, found.disagreements)))


def _opened(request: Request, scope: Scope) -> Any:
    """The queues with which the caller may do this, as far as one may see them. Raises Forbidden."""
    check_scope(request, scope)
    token, found = token_of(request), label_queues.list_queues(request.user)
    if token is None:
        return found
    if token.run_id is not None:
        raise Forbidden("This token is bound to one run, and a queue is beyond one.")
    return found.filter(project=token.project_id)


def get_queue(request: Request, key: str, scope: Scope) -> LabelQueue:
    """A queue, if the caller may do this with it. Raises NotFound or Forbidden."""
    if not _opened(request, scope).filter(key=key).exists():
        raise NotFound(f"There is no queue {key}, or you may not see it.")
    return label_queues.get(request.user, key, ROLE_FOR[scope])


def _shown(request: Request, key: str, scope: Scope) -> QueueOut:
    found = get_queue(request, key, scope)
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
