"""What trainers and viewers ask: register, fetch batches, reset."""

import uuid
from dataclasses import dataclass

import msgspec

from rollouts.doors.atropos import lookup
from rollouts.doors.atropos.responses import Request, Response, fault, invalid, ok, text
from rollouts.errors import Conflict, RunOver
from rollouts.formats.atropos.bodies import REGISTRATION, check_storable, validated
from rollouts.services import attempts, deliveries, resets
from rollouts.services.attempts import Terms
from rollouts.services.deliveries import NotRegistered, Parcel

NO_BATCH = ok({"batch": None})


@dataclass(frozen=True, slots=True)
class Shipment:
    """An answer that carries a batch, and the batch's parcel."""

    response: Response
    parcel: Parcel


def register(request: Request) -> Response:
    """`POST /register`. The number it answers is used nowhere; that a trainer registered is what matters."""
    body = validated(REGISTRATION, request.body, request.content_type)
    check_storable(body)
    if body.batch_size < 1:
        raise invalid([fault("greater_than", ("batch_size",), "Input should be greater than 0", body.batch_size)])
    attempts.register(lookup.find(request.key).run, Terms(**body.model_dump()))
    return ok({"uuid": msgspec.Raw(str(uuid.uuid4().int))})


def batch(request: Request) -> Response | Shipment:
    """`GET /batch`"""
    run = lookup.find(request.key).run
    try:
        parcel = deliveries.take(run)
    except NotRegistered as error:
        return ok(_refusal(error.message))
    except (Conflict, RunOver) as error:
        # Trainers look at `status` and show the message.
        return Response(ok(_refusal(error.message) | {"detail": error.message}).body, error.status)
    return NO_BATCH if parcel is None else Shipment(Response(parcel.body), parcel)


def reset_data(request: Request) -> Response:
    """`GET /reset_data`"""
    resets.reset(lookup.find(request.key).run)
    return text("Reset successful")


def _refusal(message: str) -> dict[str, object]:
    return {"status": "error", "message": message, "batch": []}
