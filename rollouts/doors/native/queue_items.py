"""Items of queues over the API: take one, say a word on it, take it back.

Every token belongs to somebody, and an item that it takes is that person's, as on the pages: with two tokens and a
browser they have one turn at an item.
"""

from typing import Any, cast

import msgspec
from django.contrib.auth.models import User
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.native import wire
from rollouts.doors.native.access import actor_of
from rollouts.doors.native.curation import LabelOut, label_out
from rollouts.doors.native.queues import get_queue
from rollouts.errors import NotFound
from rollouts.models import QueueTurn, Rollout, Scope
from rollouts.selectors import label_queues
from rollouts.services.curation import turns
from rollouts.storable import is_uuid


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


class TakeApi(APIView):
    """`/queues/<queue>/take`"""

    @extend_schema(operation_id="takeItem", request=None, responses=wire.answer(TakenOut))
    def post(self, request: Request, queue_key: str) -> Response:
        """The item that is yours, or the next one. Asked again before a word, it is the same one, for another while."""
        queue, user = get_queue(request, queue_key, Scope.CURATE), cast(User, request.user)
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
        """Say a word on an item that is yours. The same turn again gives the word that was said. A blind queue that is
        closed takes no other: `state_conflict`."""
        queue, user = get_queue(request, queue_key, Scope.CURATE), cast(User, request.user)
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
        """Take back your newest word, and what it did; its item is yours again. Of a queue that is closed nothing is
        taken back: `state_conflict`."""
        queue, user = get_queue(request, queue_key, Scope.CURATE), cast(User, request.user)
        return Response(wire.json(TakenOut(_turn(turns.undo(queue, user, actor=actor_of(request)), user))))


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
