"""Scored groups come in here: decoded, packed, stored. An answer means that they survive any crash."""

from collections import Counter
from collections.abc import Sequence

from django.db.models import Count

from rollouts.doors.atropos import lookup
from rollouts.doors.atropos.call import Call
from rollouts.doors.atropos.lookup import Caller, Client
from rollouts.doors.atropos.waiting import buffered, sequences
from rollouts.doors.atropos.words import ok
from rollouts.doors.messages import Answer
from rollouts.errors import Fault, Invalid, Loc, QueueFull
from rollouts.formats.atropos.encoding import encode_latest
from rollouts.formats.atropos.groups import check_trainable, pack_item
from rollouts.formats.atropos.items import Item, decode_many, decode_one
from rollouts.models import Run, ScoredGroup
from rollouts.selectors import queue
from rollouts.services.groups import intake
from rollouts.services.outside.clients import UNNAMED
from rollouts.states import GroupState

RECEIVED = {"status": "received"}
FIELDS = {"token_ids": "tokens", "loss_mask": "masks", "reward": "scores"}
"""The store's word -> Atropos' word."""


def scored_data(call: Call) -> Answer:
    """`POST /scored_data`"""
    with intake.preparing():
        item = decode_one(call.body, is_json=call.is_json)
        caller = _caller(call, item)
        _store(caller.run, [(item, caller.client, ())])
    if not _is_small(item, caller.client):
        return ok(RECEIVED)
    return ok({"status": "buffered", "buffer_size": _buffer_size(caller)})


def scored_data_list(call: Call) -> Answer:
    """`POST /scored_data_list`: all or none."""
    with intake.preparing():
        items = decode_many(call.body, is_json=call.is_json)
        if not items:
            lookup.find(call.key)
            return ok({"status": "received", "groups_processed": 0})
        by_id: dict[int | None, Caller] = {}
        for item in items:
            if item.env_id not in by_id:
                by_id[item.env_id] = _caller(call, item)
        run = by_id[items[0].env_id].run
        _store(run, [(item, by_id[item.env_id].client, (index,)) for index, item in enumerate(items)])
    answer: dict[str, object] = {"status": "received", "groups_processed": len(items)}
    small = [item for item in items if _is_small(item, by_id[item.env_id].client)]
    if small:
        answer |= {"buffered": len(small), "last_buffer_size": _buffer_size(by_id[small[-1].env_id])}
    return ok(answer)


def latest_example(call: Call) -> Answer:
    """`GET /latest_example`"""
    return Answer(encode_latest(lookup.find(call.key).run.pk))


def _caller(call: Call, item: Item) -> Caller:
    if item.env_id is None:
        return lookup.find(call.key)
    return lookup.find_environment(call.key, item.env_id)


def _store(run: Run, items: Sequence[tuple[Item, Client | None, Loc]]) -> None:
    _check_room(run)
    packed = [pack_item(item, client.environment if client else UNNAMED, at) for item, client, at in items]
    for group, (_, _, at) in zip(packed, items, strict=True):
        check_trainable(group, run.parsed, at)
    client = items[0][1]
    try:
        intake.submit(run, packed, actor=f"environment:{client.wandb_name}" if client else "environment")
    except Invalid as error:
        places = [at for _, _, at in items]
        raise Invalid(faults=[Fault(_place(each.loc, places), each.message) for each in error.faults]) from None


def _place(loc: Loc, places: Sequence[Loc]) -> Loc:
    """Where a fault that the store found lies in what was sent: the reward of a rollout is an entry of `scores`."""
    match loc:
        case ("groups", int(group), "rollouts", int(rollout), str(field)):
            return (*places[group], FIELDS.get(field, field), rollout)
        case _:
            return tuple(map(str, loc))


def _check_room(run: Run) -> None:
    """Refuse for now when too much waits; what is answered with 4xx would be dropped."""
    if queue.pressure(run) is queue.Pressure.FULL:
        limit = run.parsed.batch.max_queued_rollouts
        raise QueueFull(f"{limit} rollouts wait for the trainer already. Send it again later.")


def _is_small(item: Item, client: Client | None) -> bool:
    """Whether Atropos would wait for more groups to make a whole one of it."""
    return client is not None and len(item.tokens) < client.group_size


def _buffer_size(caller: Caller) -> int:
    """Sequences of the caller's environment that do not add up to a whole group yet."""
    client = caller.client
    assert client is not None
    small = ScoredGroup.objects.filter(
        run=caller.run,
        environment=client.environment_id,
        rollout_count__lt=client.group_size,
        state=GroupState.READY,
    )
    sizes = dict(small.values_list("rollout_count").annotate(Count("id")).order_by())
    return sequences(buffered(Counter(sizes), client.group_size))
