"""Scored groups from outside: submit whole groups, or claim work and settle it."""

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from environments.types import Rollout, ScoredGroup
from rollouts.api import wire
from rollouts.api.access import actor_of, get_run
from rollouts.errors import Invalid, LeaseLost
from rollouts.models import Lease, Scope
from rollouts.services import groups as group_services
from rollouts.services import leases
from rollouts.validation import MAX_TEXT, is_storable, is_uuid

MAX_CLAIM = 256


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
    rollouts: list[Rollout]


class SettleOut(msgspec.Struct):
    state: str


class GroupsApi(APIView):
    """`/runs/<key>/groups`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="submitGroups",
        request=wire.body(ScoredGroup | list[ScoredGroup]),
        responses={(201, "application/json"): wire.schema_of(StoredOut)},
    )
    def post(self, request: Request, key: str) -> Response:
        """Store one scored group or a list of them, all or none. A 201 means they survive any crash.

        Give each group a ``key`` of your own: sending it again after a lost answer then stores nothing twice.
        """
        run = get_run(request, key, Scope.SUBMIT)
        groups = wire.decode(request, ScoredGroup | list[ScoredGroup], repairs_text=True)  # type: ignore[arg-type]
        listed = groups if isinstance(groups, list) else [groups]
        stored = group_services.submit(run, listed, actor=actor_of(request))
        return Response(wire.json(StoredOut(stored)), status=201)


class ClaimApi(APIView):
    """`/runs/<key>/work/claim`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="claimWork",
        request=wire.body(ClaimIn),
        responses=wire.answer(leases.Claims),
    )
    def post(self, request: Request, key: str) -> Response:
        """Lease problems to play. An empty answer says why; ask again when the run changed."""
        run = get_run(request, key, Scope.SUBMIT)
        claim = wire.decode(request, ClaimIn)
        faults = {}
        if not 0 < len(claim.holder) <= 100:
            faults["holder"] = "must have 1 to 100 characters"
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
        if not is_uuid(settled.token) or not Lease.objects.filter(run=run, token=settled.token).exists():
            raise LeaseLost
        state = group_services.settle(
            token=settled.token,
            problem_key=settled.problem_key,
            rollouts=settled.rollouts,
            worker=actor_of(request),
        )
        return Response(wire.json(SettleOut(state)))
