"""What trainers and viewers ask: register, fetch batches, reset."""

import uuid

import msgspec

from rollouts.doors.atropos import lookup
from rollouts.doors.atropos.call import Call
from rollouts.doors.atropos.words import ok, problem, text
from rollouts.doors.messages import Answer
from rollouts.errors import Conflict, Fault, Invalid, RunOver
from rollouts.formats.atropos.bodies import REGISTRATION, check_storable, validated
from rollouts.models import RunKind
from rollouts.services.outside import attempts, deliveries, resets
from rollouts.services.outside.attempts import NotRegistered, Terms

RESETS_BY_POST = (
    "A GET resets nothing at this address. Send POST /reset_data; or, for clients that cannot, change the address "
    "for old clients on the run's page, under Connect."
)
NO_BATCH = ok({"batch": None})


def register(call: Call) -> Answer:
    """`POST /register`. The number it answers is used nowhere; that a trainer registered is what matters."""
    body = validated(REGISTRATION, call.body, is_json=call.is_json)
    check_storable(body)
    if body.batch_size < 1:
        fault = Fault(("batch_size",), "Input should be greater than 0", "greater_than", body.batch_size)
        raise Invalid(faults=[fault])
    attempts.register(lookup.find(call.key).run, Terms(**body.model_dump()))
    return ok({"uuid": msgspec.Raw(str(uuid.uuid4().int))})


def batch(call: Call) -> Answer:
    """`GET /batch`"""
    run = lookup.find(call.key).run
    try:
        outgoing = deliveries.take(run)
    except NotRegistered as error:
        return ok(_refusal(error.message))
    except (Conflict, RunOver) as error:
        # Trainers look at `status` and show the message.
        return Answer(ok(_refusal(error.message) | {"detail": error.message}).body, error.status)
    return NO_BATCH if outgoing is None else Answer(outgoing.body, outgoing=outgoing)


def reset_data(call: Call) -> Answer:
    """`POST /reset_data`"""
    resets.reset(lookup.find(call.key).run)
    return text("Reset successful")


def reset_by_get(call: Call) -> Answer:
    """`GET /reset_data`: what Atropos' clients send, and what a browser or a crawler sends that only looks."""
    caller = lookup.find(call.key)
    if not caller.resets_on_get and caller.run.kind == RunKind.EXTERNAL:  # in others it changes nothing
        return problem(405, RESETS_BY_POST, {"Allow": "POST"})
    resets.reset(caller.run)
    return text("Reset successful")


def _refusal(message: str) -> dict[str, object]:
    return {"status": "error", "message": message, "batch": []}
