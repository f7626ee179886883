"""What environments ask and say about themselves."""

from collections import Counter
from collections.abc import Mapping

from rollouts.doors.atropos import lookup
from rollouts.doors.atropos.call import Call
from rollouts.doors.atropos.lookup import Caller
from rollouts.doors.atropos.waiting import MIN_WEIGHT, Participant, Sizes, environment_status, queued
from rollouts.doors.atropos.words import ok
from rollouts.doors.messages import Answer
from rollouts.errors import Fault, Invalid
from rollouts.formats.atropos.bodies import ENV_IDENTIFIER, REGISTER_ENV, check_storable, validated
from rollouts.models import Attempt, EnvironmentClient, Run
from rollouts.selectors import queue
from rollouts.selectors.clients import heard
from rollouts.services.outside import clients
from rollouts.services.outside.clients import Introduction
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


def register_env(call: Call) -> Answer:
    """`POST /register-env`"""
    body = validated(REGISTER_ENV, call.body, is_json=call.is_json)
    check_storable(body)
    caller = lookup.find(call.key)
    client = clients.register(caller.run, Introduction(**body.model_dump()))
    terms = lookup.find(call.key).terms
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


def disconnect_env(call: Call) -> Answer:
    """`POST /disconnect-env`"""
    env_id = validated(ENV_IDENTIFIER, call.body, is_json=call.is_json).env_id
    client = lookup.find(call.key, env_id).client
    if client is None:
        return ok({"status": "failure", "error": f"There is no environment {env_id}."})
    clients.disconnect(client.id)
    return ok({"status": "success"})


def status_env(call: Call) -> Answer:
    """`GET /status-env`, with a JSON body; a query parameter will do."""
    env_id = _env_id(call)
    caller = lookup.find_environment(call.key, env_id)
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


def status(call: Call) -> Answer:
    """`GET /status`"""
    caller = lookup.find(call.key)
    waiting = queued(by_environment(caller.run), _participants(caller).values())
    groups = sum(sizes.total() for sizes in waiting.values())
    return ok({"current_step": caller.current_step, "queue_size": groups})


def info(call: Call) -> Answer:
    """`GET /info`. After a reset the token limit is still that of the attempt before, as with Atropos."""
    caller = lookup.find(call.key)
    if caller.terms is not None:
        return ok({"batch_size": caller.terms.batch_size, "max_token_len": caller.terms.max_token_len})
    last = Attempt.objects.filter(run=caller.run).order_by("-number").values_list("max_token_len", flat=True).first()
    return ok({"batch_size": -1, "max_token_len": -1 if last is None else last})


def wandb_info(call: Call) -> Answer:
    """`GET /wandb_info`"""
    terms = lookup.find(call.key).terms
    return ok({"group": terms and terms.wandb_group, "project": terms and terms.wandb_project})


def by_environment(run: Run) -> Mapping[int, Sizes]:
    """Sizes of the ready groups, per environment id."""
    sizes: dict[int, Sizes] = {}
    for each in queue.waiting(run):
        sizes.setdefault(each.environment_id, Counter())[each.rollout_count] += each.groups
    return sizes


def _participants(caller: Caller) -> dict[int, Participant]:
    """Clients of the open attempt by their ids, in the order in which they registered."""
    if caller.attempt_id is None:
        return {}
    # Whose share holds no batch back takes nothing from the others either, who would wait for a process that died.
    counted = set(heard(caller.attempt_id).values_list("pk", flat=True))
    rows = EnvironmentClient.objects.filter(attempt_id=caller.attempt_id).order_by("index")
    return {
        row.pk: Participant(
            environment_id=row.environment_id,
            group_size=row.group_size,
            max_token_length=row.max_token_length,
            weight=row.weight,
            min_batch_allocation=row.min_batch_allocation if row.pk in counted else None,
            is_connected=row.state != ClientState.LEFT,
        )
        for row in rows
    }


def _env_id(call: Call) -> int:
    if not call.body and call.query.startswith("env_id="):
        text = call.query.removeprefix("env_id=")
        if not text.removeprefix("-").isdecimal() or len(text) > 12:
            raise Invalid(faults=[Fault(("env_id",), "Input should be a valid integer", "int_parsing", text)])
        return int(text)
    return validated(ENV_IDENTIFIER, call.body, is_json=call.is_json).env_id
