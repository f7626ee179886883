"""What a trainer calls. Every write carries the fencing epoch; an older trainer gets 409 and changes nothing."""

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from urllib.parse import parse_qs

import msgspec
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.kernel import until
from rollouts.doors.messages import Answer, Later
from rollouts.doors.native import wire
from rollouts.doors.native.access import actor_of, get_run
from rollouts.errors import Invalid
from rollouts.models import Run, Scope
from rollouts.services.batches import forming
from rollouts.services.runs import checkpoints, policies, trainer_writes
from trainers.wire import (
    EPOCH_HEADER,
    MSGPACK,
    SHA256_HEADER,
    CheckpointIn,
    PolicyVersionIn,
    StepAck,
    TrainerRegistration,
)

MAX_WAIT_S = 30
EPOCH = OpenApiParameter(EPOCH_HEADER, int, OpenApiParameter.HEADER, required=True)


class RegisterIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    world_size: int = 1
    hostname: str = ""
    pid: int = 0


class NextStepOut(msgspec.Struct):
    next_step: int


class VersionOut(msgspec.Struct):
    version: int
    state: str


class StateOut(msgspec.Struct):
    state: str


class NoNegotiation(BaseContentNegotiation):
    """Batches are MessagePack, refusals JSON, whatever the Accept header says."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser:
        return next(iter(parsers))

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return JSONRenderer(), JSONRenderer.media_type


class TrainerView(APIView):
    """Shared by all calls of a trainer."""

    parser_classes = [wire.RawParser]
    content_negotiation_class = NoNegotiation

    def run_of(self, request: Request, key: str) -> Run:
        return get_run(request, key, Scope.TRAIN)

    def epoch_of(self, request: Request) -> int:
        return parse_epoch(request.headers.get(EPOCH_HEADER, ""))


def parse_epoch(text: str) -> int:
    """The fencing epoch out of its header. Raises Invalid."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise Invalid(
            f"Send the epoch that registration gave in the header {EPOCH_HEADER}.",
            fields={EPOCH_HEADER: "must be an integer"},
        )
    return int(text)


def parse_wait(text: str) -> float:
    """How long a fetch may wait, in seconds, cut to the limit. Raises Invalid."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise Invalid("The query parameter wait_s must be seconds.", fields={"wait_s": "must be a number from 0"})
    return min(value, MAX_WAIT_S)


def fetch(run: Run, step: int, *, epoch: str, query: str) -> Later:
    """The batch of a step, for as long as the query says that the trainer waits. Raises Invalid."""
    number = parse_epoch(epoch)
    wait_s = parse_wait(parse_qs(query, keep_blank_values=True).get("wait_s", ["0"])[-1])
    trainer_writes.hear(run, epoch=number)
    look = partial(_look, run, number, step)
    return Later(look, time.monotonic() + wait_s, otherwise=Answer(b"", 204, content_type=""))


def _look(run: Run, epoch: int, step: int) -> Answer | None:
    if (outgoing := forming.fetch(run, epoch=epoch, step=step)) is None:
        return None
    sha256 = outgoing.sha256
    headers = {SHA256_HEADER: sha256, "ETag": f'"{sha256}"', "Cache-Control": "no-store"}
    return Answer(outgoing.body, 200, MSGPACK, headers, outgoing)


class RegisterApi(TrainerView):
    """`/runs/<key>/trainer`"""

    @extend_schema(
        operation_id="registerTrainer",
        request=wire.body(RegisterIn),
        responses=wire.answer(TrainerRegistration),
    )
    def post(self, request: Request, key: str) -> Response:
        """Let a trainer begin: raises the run's epoch, which shuts every earlier trainer out."""
        run = self.run_of(request, key)
        body = wire.decode(request, RegisterIn)
        registration = trainer_writes.register_trainer(
            run,
            world_size=body.world_size,
            hostname=body.hostname[:100],
            pid=body.pid,
            actor=actor_of(request),
        )
        return Response(wire.json(registration))


class BatchApi(TrainerView):
    """`/runs/<key>/batches/<step>`"""

    @extend_schema(
        operation_id="fetchBatch",
        parameters=[
            EPOCH,
            OpenApiParameter("wait_s", int, description=f"Wait so long for it, at most {MAX_WAIT_S}."),
        ],
        responses={(200, MSGPACK): OpenApiTypes.BINARY, 204: None},
    )
    def get(self, request: Request, key: str, step: int) -> HttpResponse:
        """The batch of a step as MessagePack, or 204 when it is not ready yet. The same bytes on every retry."""
        run = self.run_of(request, key)
        later = fetch(run, step, epoch=request.headers.get(EPOCH_HEADER, ""), query=request.META["QUERY_STRING"])
        answer = later.look() or async_to_sync(until)(later, sync_to_async(_look_and_let_go))
        return wire.response(answer)


def _look_and_let_go(look: Callable[[], Answer | None]) -> Answer | None:
    """Look, and give the connection back to the pool: people who wait must not take it from those who do not."""
    try:
        return look()
    finally:
        if not connection.in_atomic_block:
            connection.close()


class StepApi(TrainerView):
    """`/runs/<key>/steps/<step>`"""

    @extend_schema(
        operation_id="ackStep",
        parameters=[EPOCH],
        request=wire.body(StepAck) | {MSGPACK: wire.schema_of(StepAck)},
        responses=wire.answer(NextStepOut),
    )
    def post(self, request: Request, key: str, step: int) -> Response:
        """The step is done. Acknowledging it again changes nothing but its metrics and token values."""
        run = self.run_of(request, key)
        epoch = self.epoch_of(request)
        next_step = trainer_writes.ack_step(run, epoch=epoch, step=step, ack=wire.decode(request, StepAck))
        return Response(wire.json(NextStepOut(next_step)))


class PolicyVersionsApi(TrainerView):
    """`/runs/<key>/policy-versions`"""

    @extend_schema(
        operation_id="announcePolicyVersion",
        parameters=[EPOCH],
        request=wire.body(PolicyVersionIn),
        responses=wire.answer(VersionOut),
    )
    def post(self, request: Request, key: str) -> Response:
        """Weights are complete on disk; the control plane publishes them to the inference replicas."""
        run = self.run_of(request, key)
        version_in = wire.decode(request, PolicyVersionIn)
        version = policies.announce(run, epoch=self.epoch_of(request), version_in=version_in)
        return Response(wire.json(VersionOut(version.version, version.state)))


class CheckpointsApi(TrainerView):
    """`/runs/<key>/checkpoints`"""

    @extend_schema(
        operation_id="addCheckpoint",
        parameters=[EPOCH],
        request=wire.body(CheckpointIn),
        responses=wire.answer(StateOut),
    )
    def post(self, request: Request, key: str) -> Response:
        """A checkpoint is complete on disk; a trainer started later may resume from it."""
        run = self.run_of(request, key)
        checkpoint = wire.decode(request, CheckpointIn)
        row = checkpoints.add_checkpoint(run, epoch=self.epoch_of(request), checkpoint=checkpoint)
        return Response(wire.json(StateOut(row.state)))


class FinishApi(TrainerView):
    """`/runs/<key>/trainer/finish`"""

    @extend_schema(
        operation_id="finishTraining",
        parameters=[EPOCH],
        request=None,
        responses=wire.answer(StateOut),
    )
    def post(self, request: Request, key: str) -> Response:
        """Every step is acknowledged; the trainer ends."""
        run = trainer_writes.finish_training(self.run_of(request, key), epoch=self.epoch_of(request))
        return Response(wire.json(StateOut(run.state)))
