"""Scored groups from outside: submit whole groups, or claim work and settle it."""

from dataclasses import replace

import msgspec
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from environments.types import Claims, PackedScoredGroup, PlayedGroup, PlayedRollout
from rollouts.doors.messages import JSON, Answer
from rollouts.doors.native import wire
from rollouts.doors.native.access import actor_of, get_run
from rollouts.errors import Invalid, LeaseLost, QueueFull
from rollouts.formats.arrays import PackedGroup
from rollouts.formats.native import decode_groups
from rollouts.models import Lease, Run, Scope
from rollouts.selectors import queue
from rollouts.services.groups import intake, leases, settling
from rollouts.storable import MAX_ENVIRONMENT_VERSION, MAX_TEXT, UNNAMABLE, is_name, is_storable, is_uuid
from trainers.wire import MSGPACK

MAX_CLAIM = 256
IDEMPOTENCY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="Names this request: groups without a key of their own get keys from it, so a repetition is harmless.",
)


class StoredOut(msgspec.Struct):
    stored: list[str]
    """Keys of the groups, in the order they were sent."""


class ClaimIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    holder: str
    """Who works: shown on the group's page and in events."""
    limit: int = 1


class RenewIn(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[str]


class RenewOut(msgspec.Struct):
    held: list[str]
    """Tokens that are still yours. Drop the work of all others."""


class SettleIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    token: str
    problem_key: str
    rollouts: list[PlayedRollout]
    environment_version: str = ""
    """Of the code that gave the problem and scored it."""


class SettleOut(msgspec.Struct):
    state: str


class GroupsApi(APIView):
    """`/runs/<key>/groups`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="submitGroups",
        parameters=[IDEMPOTENCY],
        request={
            JSON: wire.schema_of(PlayedGroup | list[PlayedGroup]),
            MSGPACK: wire.schema_of(PackedScoredGroup),
        },
        responses={
            (201, JSON): wire.schema_of(StoredOut),
            (202, JSON): wire.schema_of(StoredOut),
        },
    )
    def post(self, request: Request, key: str) -> HttpResponse:
        """Store one scored group or a list of them, all or none. A 201 or 202 means they survive any crash.

        Give each group a ``key`` of your own, or the request an ``Idempotency-Key``: sending it again after a lost
        answer then stores nothing twice. MessagePack may carry the arrays as little-endian bytes. A 202 asks to slow
        down and a 429 to come back, both after ``Retry-After`` seconds: the trainer is behind.
        """
        run = get_run(request, key, Scope.SUBMIT)
        body, idempotency_key = wire.read(request), request.headers.get("Idempotency-Key")
        return wire.response(submit(run, request.content_type or "", body, idempotency_key, actor=actor_of(request)))


def submit(run: Run, content_type: str, body: bytes, idempotency_key: str | None, *, actor: str) -> Answer:
    """Store what a body holds. Raises what decoding and ``services.groups.intake.submit`` do, and QueueFull."""
    level = queue.pressure(run)
    if level is queue.Pressure.FULL:
        limit = run.parsed.batch.max_queued_rollouts
        raise QueueFull(f"{limit} rollouts or more wait for the trainer; submit again later.")
    with intake.preparing():
        groups = decode_groups(body, is_msgpack=wire.media_type(content_type) == MSGPACK)
        if idempotency_key is not None:
            groups = _with_keys(groups, idempotency_key)
        out = msgspec.json.encode(StoredOut(intake.submit(run, groups, actor=actor)))
    if level is queue.Pressure.HIGH:
        return Answer(out, 202, headers={"Retry-After": str(QueueFull.retry_after_s)})
    return Answer(out, 201)


def _with_keys(groups: list[PackedGroup], idempotency_key: str) -> list[PackedGroup]:
    if not 0 < len(idempotency_key) <= MAX_TEXT or not is_storable(idempotency_key):
        raise Invalid(fields={"Idempotency-Key": f"must have 1 to {MAX_TEXT} characters"})
    keys = intake.derived_keys(idempotency_key, len(groups))
    return [replace(group, key=group.key or key) for group, key in zip(groups, keys, strict=True)]


class ClaimApi(APIView):
    """`/runs/<key>/work/claim`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="claimWork",
        request=wire.body(ClaimIn),
        responses=wire.answer(Claims),
    )
    def post(self, request: Request, key: str) -> Response:
        """Lease problems to play. An empty answer says why; ask again when the run changed."""
        run = get_run(request, key, Scope.SUBMIT)
        claim = wire.decode(request, ClaimIn)
        faults = {}
        if not 0 < len(claim.holder) <= 100:
            faults["holder"] = "must have 1 to 100 characters"
        elif not is_name(claim.holder):
            faults["holder"] = UNNAMABLE
        if not 0 < claim.limit <= MAX_CLAIM:
            faults["limit"] = f"must be 1 to {MAX_CLAIM}"
        if faults:
            raise Invalid(fields=faults)
        claims = leases.claim(
            run,
            holder=claim.holder,
            limit=claim.limit,
            lease_s=run.parsed.workers.lease_s,
        )
        return Response(wire.json(claims))


class RenewApi(APIView):
    """`/runs/<key>/work/renew`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="renewWork",
        request=wire.body(RenewIn),
        responses=wire.answer(RenewOut),
    )
    def post(self, request: Request, key: str) -> Response:
        """Extend leases. Do it every sixth of their term."""
        run = get_run(request, key, Scope.SUBMIT)
        tokens = [token for token in wire.decode(request, RenewIn).tokens if is_uuid(token)]
        own = Lease.objects.filter(run=run, token__in=tokens).values_list("token", flat=True)
        held = leases.renew(own, lease_s=run.parsed.workers.lease_s)
        return Response(wire.json(RenewOut(sorted(map(str, held)))))


class SettleApi(APIView):
    """`/runs/<key>/work/settle`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="settleWork",
        request=wire.body(SettleIn),
        responses=wire.answer(SettleOut),
    )
    def post(self, request: Request, key: str) -> Response:
        """Store the rollouts of a claimed group and end its lease."""
        run = get_run(request, key, Scope.SUBMIT)
        settled = wire.decode(request, SettleIn, repairs_text=True)
        if not 0 < len(settled.problem_key) <= MAX_TEXT or not is_storable(settled.problem_key):
            raise Invalid(fields={"problem_key": f"must have 1 to {MAX_TEXT} characters, and no NUL"})
        if len(settled.environment_version) > MAX_ENVIRONMENT_VERSION or not is_name(settled.environment_version):
            fault = f"must have at most {MAX_ENVIRONMENT_VERSION} characters, none of which hides or controls"
            raise Invalid(fields={"environment_version": fault})
        if not is_uuid(settled.token) or not Lease.objects.filter(run=run, token=settled.token).exists():
            raise LeaseLost
        state = settling.settle(
            token=settled.token,
            problem_key=settled.problem_key,
            rollouts=settled.rollouts,
            worker=actor_of(request),
            environment_version=settled.environment_version,
        )
        return Response(wire.json(SettleOut(state)))
