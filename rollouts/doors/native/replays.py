"""Have a run train stored batches of another again, and see what was ordered."""

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.messages import JSON
from rollouts.doors.native import wire
from rollouts.doors.native.access import actor_of, get_run
from rollouts.models import Replay, Scope
from rollouts.services.batches import replays


class ReplayIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which steps of which run."""

    source: str
    """Key of a run that you may read."""
    first_step: int
    last_step: int
    """Inclusive."""
    reason: str = ""


class ReplayOut(msgspec.Struct, kw_only=True):
    """An order, and how far it was carried out."""

    replay: int
    source: str
    first_step: int
    last_step: int
    taken: int
    """Batches of it that the run has formed."""
    actor: str
    reason: str
    created_at: str


class ReplaysOut(msgspec.Struct):
    replays: list[ReplayOut]


class ReplaysApi(APIView):
    """`/runs/<key>/replays`"""

    parser_classes = [wire.RawParser]

    @extend_schema(operation_id="listReplays", responses=wire.answer(ReplaysOut))
    def get(self, request: Request, key: str) -> Response:
        """Every order of a replay into this run, oldest first: the order in which they are carried out."""
        run = get_run(request, key, Scope.READ)
        rows = Replay.objects.filter(run=run).select_related("source").order_by("id")
        return Response(wire.json(ReplaysOut([_out(row) for row in rows])))

    @extend_schema(
        operation_id="orderReplay",
        request=wire.body(ReplayIn),
        responses={(201, JSON): wire.schema_of(ReplayOut)},
    )
    def post(self, request: Request, key: str) -> Response:
        """Let the run train batches of another next, before any of its own. A token needs `read` too, for the source.

        The batches have the same groups in the same order, with advantages by this run's algorithm. The source keeps
        its groups as they are. Ordering the same steps twice trains them twice.
        """
        run = get_run(request, key, Scope.LAUNCH)
        order = wire.decode(request, ReplayIn)
        replay = replays.order(
            run,
            source=get_run(request, order.source, Scope.READ),
            first_step=order.first_step,
            last_step=order.last_step,
            actor=actor_of(request),
            reason=order.reason,
        )
        return Response(wire.json(_out(replay)), status=201)


def _out(replay: Replay) -> ReplayOut:
    return ReplayOut(
        replay=replay.pk,
        source=replay.source.key,
        first_step=replay.first_step,
        last_step=replay.last_step,
        taken=replay.taken,
        actor=replay.actor,
        reason=replay.reason,
        created_at=replay.created_at.isoformat(),
    )
