"""Scored groups come in here: decoded, packed, stored. An answer means that they survive any crash."""

import re
from collections import Counter
from collections.abc import Sequence

from django.db.models import Count

from rollouts.doors.atropos import lookup
from rollouts.doors.atropos.lookup import Caller, Client
from rollouts.doors.atropos.responses import Refused, Request, Response, fault, invalid, ok, try_again
from rollouts.doors.atropos.waiting import buffered, sequences
from rollouts.errors import Invalid
from rollouts.formats.atropos.encoding import encode_latest
from rollouts.formats.atropos.groups import Loc, pack_item
from rollouts.formats.atropos.items import ScoredData, decode_many, decode_one
from rollouts.models import Run, ScoredGroup
from rollouts.selectors import queue
from rollouts.services import groups
from rollouts.services.clients import UNNAMED
from rollouts.states import GroupState

RECEIVED = {"status": "received"}
FIELDS = {"token_ids": "tokens", "loss_mask": "masks", "reward": "scores"}
"""The store's word -> Atropos' word."""


def scored_data(request: Request) -> Response:
    """`POST /scored_data`"""
    with groups.preparing():
        item = decode_one(request.body, request.content_type)
        caller = _caller(request, item)
        _store(caller.run, [(item, caller.client, ())])
    if not _is_small(item, caller.client):
        return ok(RECEIVED)
    return ok({"status": "buffered", "buffer_size": _buffer_size(caller)})


def scored_data_list(request: Request) -> Response:
    """`POST /scored_data_list`: all or none."""
    with groups.preparing():
        items = decode_many(request.body, request.content_type)
        if not items:
            lookup.find(request.key)
            return ok({"status": "received", "groups_processed": 0})
        by_id: dict[int | None, Caller] = {}
        for item in items:
            if item.env_id not in by_id:
                by_id[item.env_id] = _caller(request, item)
        run = by_id[items[0].env_id].run
        _store(run, [(item, by_id[item.env_id].client, (index,)) for index, item in enumerate(items)])
    answer: dict[str, object] = {"status": "received", "groups_processed": len(items)}
    small = [item for item in items if _is_small(item, by_id[item.env_id].client)]
    if small:
        answer |= {"buffered": len(small), "last_buffer_size": _buffer_size(by_id[small[-1].env_id])}
    return ok(answer)


def latest_example(request: Request) -> Response:
    """`GET /latest_example`"""
    return Response(encode_latest(lookup.find(request.key).run.pk))


def _caller(request: Request, item: ScoredData) -> Caller:
    if item.env_id is None:
        return lookup.find(request.key)
    return lookup.find_environment(request.key, item.env_id)


def _store(run: Run, items: Sequence[tuple[ScoredData, Client | None, Loc]]) -> None:
    _check_room(run)
    packed = [pack_item(item, client.environment if client else UNNAMED, at) for item, client, at in items]
    client = items[0][1]
    try:
        groups.submit(run, packed, actor=f"environment:{client.wandb_name}" if client else "environment")
    except Invalid as error:
        places = [at for _, _, at in items]
        raise invalid([fault("value_error", _loc(path, places), why) for path, why in error.fields.items()]) from None


def _loc(path: str, places: Sequence[Loc]) -> Loc:
    """Where a fault that the store found lies: `groups.1.rollouts.3.reward` is `scores`, 3 of the second item."""
    match = re.fullmatch(r"groups\.(\d+)\.rollouts\.(\d+)\.(\w+)", path)
    if match is None:
        return tuple(path.split("."))
    return (*places[int(match[1])], FIELDS.get(match[3], match[3]), int(match[2]))


def _check_room(run: Run) -> None:
    """Refuse for now when too much waits; what is answered with 4xx would be dropped."""
    if queue.pressure(run) is queue.Pressure.FULL:
        limit = run.parsed.batch.max_queued_rollouts
        raise Refused(try_again(f"{limit} rollouts wait for the trainer already. Send it again later."))


def _is_small(item: ScoredData, client: Client | None) -> bool:
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
