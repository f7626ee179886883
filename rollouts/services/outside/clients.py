"""Environments that take part over the Atropos-compatible API: registration, heartbeat, lapse, leaving.

A client is one process; several may play one environment, which is known by its name. Every request of a client is a
heartbeat. Processes die without signing off, so the minimum share of a client without a heartbeat lapses after
ALLOCATION_LAPSE_S, instead of holding up every batch.
"""

import math
import time
from dataclasses import dataclass

from django.db import connection, transaction
from django.db.models import Max

from rollouts.errors import Invalid
from rollouts.models import Attempt, EnvironmentClient, Run, RunEnvironment, RunKind
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors.clients import ALLOCATION_LAPSE_S, silent
from rollouts.services.batches.mixture import rescaled
from rollouts.services.groups.intake import MAX_ENVIRONMENTS
from rollouts.services.outside import attempts
from rollouts.services.transitions import DB_NOW, record_creation, transition
from rollouts.sql import load
from rollouts.states import AttemptState, ClientState, RunState
from rollouts.storable import MAX_ENVIRONMENT, MAX_WEIGHT, named

HEARTBEAT_S = 5.0
"""A heartbeat is written at most this often per client and process."""
SMALLEST_WEIGHT = 1e-6
LARGEST_WEIGHT = math.nextafter(MAX_WEIGHT, 0.0)
CONTROL_PLANE = "control plane"
UNNAMED = "external"
"""Environment of groups that nobody registered for."""


@dataclass(frozen=True)
class Introduction:
    """What an environment registers with; fields as in the model."""

    desired_name: str
    max_token_length: int
    weight: float
    group_size: int
    min_batch_allocation: float | None


def register(run: Run, introduction: Introduction) -> EnvironmentClient | None:
    """A new client of the open attempt; None: it has to wait until a trainer asks for batches.

    A run with a trainer of ours has no registration to wait for: its attempt opens with the first environment. Raises
    Invalid when the run has too many environments, RunOver after its end. Locks the run's row.
    """
    with transaction.atomic():
        run = attempts.lock(run)
        attempt = attempts.current(run)
        if run.state == RunState.PENDING:
            return None
        if attempt is None and run.kind == RunKind.RL:
            attempt = attempts.open_attempt(run, attempts.own_terms(run), actor=CONTROL_PLANE, is_started=True)
        if attempt is None or attempt.state != AttemptState.STARTED:
            return None
        name = named(introduction.desired_name)
        environment = _environment(run, name[:MAX_ENVIRONMENT] or UNNAMED)
        if run.kind == RunKind.EXTERNAL:
            before = environment.weight
            environment.weight = min(max(introduction.weight, SMALLEST_WEIGHT), LARGEST_WEIGHT)
            environment.virtual_time = rescaled(environment.virtual_time, run.mixture_clock, before, environment.weight)
            environment.save(update_fields=["weight", "virtual_time"])
        clients = EnvironmentClient.objects.filter(attempt=attempt)
        # Of all attempts: whoever did not hear of a reset still goes by its old one.
        newest: int | None = EnvironmentClient.objects.filter(attempt__run=run).aggregate(newest=Max("index"))["newest"]
        wandb_name = f"{name}_{clients.filter(environment=environment).count()}"
        index = 0 if newest is None else newest + 1
        reason = Reason(ReasonCode.CLIENT_REGISTERED)
        return _add(attempt, index, environment, wandb_name, introduction, batch_size=attempt.batch_size, reason=reason)


def adopt(run: Run, index: int) -> EnvironmentClient | None:
    """Take an environment over from an earlier attempt: it did not hear of the reset and still uses its old id.

    None when no attempt is open, or nobody was ever called that. Locks the run's row.
    """
    with transaction.atomic():
        run = attempts.lock(run)
        attempt = attempts.current(run)
        former = newest_of_index(run, index)
        if attempt is None or former is None or former.attempt_id == attempt.pk:
            return former if attempt is not None else None
        introduction = Introduction(
            desired_name=former.environment.name,
            max_token_length=former.max_token_length,
            weight=former.weight,
            group_size=former.group_size,
            min_batch_allocation=former.min_batch_allocation,
        )
        reason = Reason(ReasonCode.CLIENT_TAKEN_OVER, number=attempt.number)
        return _add(
            attempt,
            index,
            former.environment,
            former.wandb_name,
            introduction,
            batch_size=former.batch_size,
            reason=reason,
        )


def newest_of_index(run: Run, index: int) -> EnvironmentClient | None:
    """Who called itself that last, in whichever attempt."""
    of_index = EnvironmentClient.objects.filter(attempt__run=run, index=index).select_related("environment")
    return of_index.order_by("-attempt_id").first()


def disconnect(client_id: int) -> None:
    """The environment leaves: its weight and its share no longer count. What it sent stays."""
    name = EnvironmentClient.objects.values_list("wandb_name", flat=True).get(pk=client_id)
    reason = Reason(ReasonCode.CLIENT_LEFT, client=name)
    actor = f"environment:{name}"
    transition(EnvironmentClient, [client_id], to=ClientState.LEFT, actor=actor, reason=reason, lapsed_at=None)


def heartbeat(client_id: int) -> None:
    """Record that the client made a request: a comparison in memory, and a write every HEARTBEAT_S."""
    now = time.monotonic()
    if now - _heartbeats.get(client_id, -math.inf) < HEARTBEAT_S:
        return
    _heartbeats[client_id] = now
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(load("client_heartbeat"), {"client_id": client_id, "heartbeat_s": HEARTBEAT_S})
            row = cursor.fetchone()
        if row is not None and row[0] == ClientState.LAPSED:
            _recover(EnvironmentClient.objects.get(pk=client_id))


def _recover(client: EnvironmentClient) -> None:
    reason = Reason(ReasonCode.CLIENT_HEARD, client=client.wandb_name)
    transition(
        EnvironmentClient, [client.pk], to=ClientState.CONNECTED, actor=CONTROL_PLANE, reason=reason, lapsed_at=None
    )


_heartbeats: dict[int, float] = {}
"""Client id -> when this process last wrote a heartbeat of it (monotonic seconds). One entry per registration."""


def lapse_silent(attempt: Attempt) -> None:
    """Let the shares of silent clients lapse, for all to see. The run is locked."""
    for client in silent(attempt).select_for_update(no_key=True).order_by("pk"):
        reason = Reason(
            ReasonCode.CLIENT_SILENT,
            client=client.wandb_name,
            silent_s=ALLOCATION_LAPSE_S,
            share=client.min_batch_allocation,
        )
        transition(
            EnvironmentClient, [client.pk], to=ClientState.LAPSED, actor=CONTROL_PLANE, reason=reason, lapsed_at=DB_NOW
        )


def _environment(run: Run, name: str) -> RunEnvironment:
    known = RunEnvironment.objects.filter(run=run)
    found = known.filter(name=name).first()
    if found is None and known.count() >= MAX_ENVIRONMENTS:
        fields = {"desired_name": f"a run has at most {MAX_ENVIRONMENTS} environments"}
        raise Invalid("Nothing was registered: the run has too many environments.", fields=fields)
    return found or RunEnvironment.objects.get_or_create(run=run, name=name)[0]


def _add(
    attempt: Attempt,
    index: int,
    environment: RunEnvironment,
    wandb_name: str,
    introduction: Introduction,
    *,
    batch_size: int,
    reason: Reason,
) -> EnvironmentClient:
    client = EnvironmentClient.objects.create(
        attempt=attempt,
        index=index,
        environment=environment,
        wandb_name=wandb_name,
        max_token_length=introduction.max_token_length,
        weight=introduction.weight,
        group_size=introduction.group_size,
        batch_size=batch_size,
        min_batch_allocation=introduction.min_batch_allocation,
    )
    actor = f"environment:{wandb_name}"
    record_creation([client], run_id=attempt.run_id, state=ClientState.CONNECTED, actor=actor, reason=reason)
    return client
