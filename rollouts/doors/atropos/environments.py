"""What environments ask and say about themselves."""

from collections import Counter
from collections.abc import Mapping

from rollouts.doors.atropos import lookup
from rollouts.doors.atropos.lookup import Caller
from rollouts.doors.atropos.responses import Request, Response, fault, invalid, ok
from rollouts.doors.atropos.waiting import MIN_WEIGHT, Participant, Sizes, environment_status, queued
from rollouts.formats.atropos.bodies import ENV_IDENTIFIER, REGISTER_ENV, check_storable, validated
from rollouts.models import Attempt, EnvironmentClient, Run
from rollouts.selectors import queue
from rollouts.services import clients
from rollouts.services.clients import Introduction
from rollouts.states import ClientState

WAIT = {"status": "wait for trainer to start"}
"""Environments ask again each second."""
UNKNOWN = {
    "queue_size": 0,
    "unallocated_fraction": 1.0,
    "self_queue_size": 0,
    "max_group_size": 1,
    "env_weight": MIN_WEIGHT,
}
"""For an environment of which nothing is known: it goes on, while an error would end it."""


def register_env(request: Request) -> Response:
    """`POST /register-env`"""
    body = validated(REGISTER_ENV, request.body, request.content_type)
    check_storable(body)
    caller = lookup.find(request.key)
    client = clients.register(caller.run, Introduction(**body.model_dump()))
    terms = lookup.find(request.key).terms
    if client is None or terms is None:
        return ok(WAIT)
    return ok(
        {
            "status": "success",
            "env_id": client.index,
            "wandb_name": client.wandb_name,
            "checkpoint_dir": terms.checkpoint_dir,
            "starting_step": caller.current_step,
            "checkpoint_interval": terms.save_checkpoint_interval,
            "num_steps": terms.num_steps,
        }
    )


def disconnect_env(request: Request) -> Response:
    """`POST /disconnect-env`"""
    env_id = validated(ENV_IDENTIFIER, request.body, request.content_type).env_id
    client = lookup.find(request.key, env_id).client
    if client is None:
        return ok({"status": "failure", "error": f"There is no environment {env_id}."})
    clients.disconnect(client.id)
    return ok({"status": "success"})


def status_env(request: Request) -> Response:
    """`GET /status-env`, with a JSON body; a query parameter will do."""
    env_id = _env_id(request)
    caller = lookup.find_environment(request.key, env_id)
    caller.check_takes_part()
    numbers = {"current_step": caller.current_step}
    if caller.client is None or caller.terms is None:
        return ok(numbers | UNKNOWN)
    participants = _participants(caller)
    everybody = list(participants.values())
    waiting = queued(by_environment(caller.run), everybody)
    own = participants[caller.client.id]
    told = environment_status(own, everybody, waiting, batch_size=caller.terms.batch_size)
    for length in ("queue_size", "self_queue_size"):  # it compares them with batches of the size it knows
        told[length] = told[length] * caller.client.batch_size // caller.terms.batch_size
    return ok(numbers | told)


def status(request: Request) -> Response:
    """`GET /status`"""
    caller = lookup.find(request.key)
    waiting = queued(by_environment(caller.run), _participants(caller).values())
    groups = sum(sizes.total() for sizes in waiting.values())
    return ok({"current_step": caller.current_step, "queue_size": groups})


def info(request: Request) -> Response:
    """`GET /info`. After a reset the token limit is still that of the attempt before, as with Atropos."""
    caller = lookup.find(request.key)
    if caller.terms is not None:
        return ok({"batch_size": caller.terms.batch_size, "max_token_len": caller.terms.max_token_len})
    last = Attempt.objects.filter(run=caller.run).order_by("-number").values_list("max_token_len", flat=True).first()
    return ok({"batch_size": -1, "max_token_len": -1 if last is None else last})


def wandb_info(request: Request) -> Response:
    """`GET /wandb_info`"""
    terms = lookup.find(request.key).terms
    return ok({"group": terms and terms.wandb_group, "project": terms and terms.wandb_project})


def by_environment(run: Run) -> Mapping[int, Sizes]:
    """Sizes of the ready groups, per environment id."""
    sizes: dict[int, Sizes] = {}
    for each in queue.waiting(run):
        sizes.setdefault(each.environment_id, Counter())[each.rollout_count] += each.groups
    return sizes


def _participants(caller: Caller) -> dict[int, Participant]:
    """Clients of the open attempt by their ids, in the order in which they registered."""
    rows = EnvironmentClient.objects.none()
    if caller.attempt_id is not None:
        rows = EnvironmentClient.objects.filter(attempt_id=caller.attempt_id).order_by("index")
    return {
        row.pk: Participant(
            environment_id=row.environment_id,
            group_size=row.group_size,
            max_token_length=row.max_token_length,
            weight=row.weight,
            min_batch_allocation=row.min_batch_allocation,
            is_connected=row.state != ClientState.LEFT,
        )
        for row in rows
    }


def _env_id(request: Request) -> int:
    if not request.body and request.query.startswith("env_id="):
        text = request.query.removeprefix("env_id=")
        if not text.removeprefix("-").isdecimal() or len(text) > 12:
            raise invalid([fault("int_parsing", ("env_id",), "Input should be a valid integer", text)])
        return int(text)
    return validated(ENV_IDENTIFIER, request.body, request.content_type).env_id
