"""Create a run, and move it through its life."""

from collections.abc import Sequence
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from rollouts.errors import Invalid, StateConflict
from rollouts.models import (
    Evaluation,
    Event,
    Lease,
    Model,
    Project,
    Run,
    RunEnvironment,
    ScoredGroup,
)
from rollouts.reasons import WAITS, Reason, ReasonCode
from rollouts.services.datasets import learning
from rollouts.services.groups import evaluations, leases
from rollouts.services.groups.intake import close_gate
from rollouts.services.runs import addresses, arrivals, forks, placements
from rollouts.services.transitions import DB_NOW, move, record_creation, record_note, stored, transition
from rollouts.states import (
    GROUP_WAITING,
    RUN_TERMINAL,
    EvaluationState,
    GroupState,
    RunState,
)
from rollouts.storable import check_fits
from trainers.config import Resolved


def create(
    *,
    project: Project,
    user: User | None,
    resolved: Resolved,
    actor: str,
    fork: forks.Fork | None = None,
    model: Model | None = None,
    learned: Sequence[learning.Learned] = (),
) -> Run:
    """Store a run with its frozen config; the reconciler sees it and starts what it wants.

    Doors call `launches.py`, which makes sure that its model loads; ``model`` is the registered one it starts
    from. Raises Invalid for a number that the database or its clock cannot hold: it would only break later, far from
    here. A fork is of a config that was resolved with ``fork.overrides``. Locks the checkpoint it is forked from and
    the model it starts from, either of which may be taken away.
    """
    config = resolved.config
    check_fits(config)
    with transaction.atomic():
        lineage = forks.hold(fork, config) if fork else {}
        if model is not None and not Model.objects.select_for_update(no_key=True).filter(pk=model.pk):
            raise Invalid(
                "Nothing was launched.", fields={"model.path": f"the model {model.name} was taken away just now"}
            )
        run = Run.objects.create(
            **lineage,
            model=model,
            project=project,
            created_by=user,
            kind=config.kind,
            name=config.name,
            config=config.model_dump(mode="json"),
            config_origins={**resolved.origins, **({"model.path": fork.origin} if fork else {})},
            max_steps=config.max_steps,
        )
        RunEnvironment.objects.bulk_create(
            RunEnvironment(run=run, name=ref.run_name, args=ref.args, weight=ref.weight_at(0), problems=ref.problems)
            for ref in config.environments
        )
        learning.keep(run, learned)
        addresses.make(run, owner=user)
        record_creation([run], run_id=run.pk, state=RunState.PENDING, actor=actor)
        if fork is not None:
            forks.register_series(run, fork.series, actor=actor)
    return run


def request_stop(run: Run, *, actor: str, reason: str | Reason = "") -> Run:
    """Ask a run to end now: nothing more is claimed or trained, then its replicas are ended. Idempotent.

    ``reason`` is in the words of whoever asks, or a reason of ours.
    """
    if isinstance(reason, str):
        reason = Reason(ReasonCode.TEXT, text=reason) if reason else Reason(ReasonCode.STOP_ASKED, actor=actor)
    if not transition(Run, [run.pk], to=RunState.STOPPING, actor=actor, reason=reason):
        run.refresh_from_db()
        if run.state not in {RunState.STOPPING, RunState.STOPPED}:
            raise StateConflict(f"Run {run.key} is {run.state}; there is nothing to stop.")
    run.refresh_from_db()
    return run


def note_wait(run: Run, reason: Reason) -> None:
    """Record what a run waits for before it begins; once, however often it is looked at."""
    with transaction.atomic():
        last = Event.objects.filter(object_kind="run", object_id=run.pk, reason_code__in=WAITS).order_by("-id").first()
        if last is None or (last.reason_code, last.reason_params) != stored(reason):
            record_note(run, run_id=run.pk, actor="reconciler", reason=reason)


def start(run: Run, *, actor: str = "reconciler") -> Run:
    """Its replicas are being started."""
    return move(run, to=RunState.STARTING, actor=actor, started_at=DB_NOW)


def end(run: Run, *, to: RunState, actor: str = "reconciler", reason: Reason | None = None) -> Run:
    """Close a run for good: what is left of its groups becomes surplus, its leases and open evaluations end with it,
    and its GPUs are free. Batches that reached a trainer which cannot acknowledge were trained.

    Call it when no process of the run is alive, and in no transaction. A claim or a settle that is on its way is waited
    for. Its evaluations end before it does: what they found is worked out while nothing is locked. Then locks the run,
    its gate, and in the order of ``services.groups.leases`` its environments, leases and groups. Raises StateConflict,
    also for an evaluation that was opened meanwhile: end it again.
    """
    if to not in RUN_TERMINAL:
        raise ValueError(f"{to} is not an end")
    ended = Reason(ReasonCode.RUN_ENDED, state=str(to))
    evaluations.end(run, ended, actor=actor)
    with transaction.atomic():
        locked = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
        close_gate(run)
        if Evaluation.objects.filter(run=run, state=EvaluationState.PLAYING).exists():
            raise StateConflict(f"An evaluation of run {run.key} was opened while it ended.")
        list(RunEnvironment.objects.select_for_update(no_key=True).filter(run=run).order_by("id"))
        leases.end_all(Lease.objects.filter(run=run))
        arrivals.acknowledge_sent(locked, actor=actor, reason=Reason(ReasonCode.ARRIVED_BEFORE_END, state=str(to)))
        for state in (GroupState.PLAYING, *GROUP_WAITING, GroupState.BATCHED):
            left = ScoredGroup.objects.filter(run=run, state=state).values_list("pk", flat=True)
            columns: dict[str, Any] = {"settled_at": DB_NOW} if state == GroupState.PLAYING else {}
            transition(ScoredGroup, left, to=GroupState.SURPLUS, actor=actor, reason=ended, **columns)
        placements.release(run)
        return move(run, to=to, actor=actor, reason=reason, finished_at=DB_NOW)
