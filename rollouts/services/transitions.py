"""The only place where a state changes.

One statement per change: it names the states it expects, moves the rows that are still in one of them, and appends an
Event for each, all or nothing. Whoever loses a race moves zero rows and is told so. The bell rings after commit.
"""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, LiteralString, NamedTuple, TypeVar, cast

from django.db import connection, models
from psycopg import sql as pg

from rollouts import bell
from rollouts.errors import StateConflict
from rollouts.models import (
    Attempt,
    Batch,
    Checkpoint,
    EnvironmentClient,
    Evaluation,
    Event,
    Export,
    PolicyVersion,
    Replica,
    Run,
    ScoredGroup,
    Trial,
)
from rollouts.models.stateful import Stateful
from rollouts.reasons import Reason
from rollouts.sql import load
from rollouts.states import (
    ATTEMPT_TRANSITIONS,
    BATCH_TRANSITIONS,
    CHECKPOINT_TRANSITIONS,
    CLIENT_TRANSITIONS,
    EVALUATION_TRANSITIONS,
    EXPORT_TRANSITIONS,
    GROUP_TRANSITIONS,
    POLICY_VERSION_TRANSITIONS,
    REPLICA_TRANSITIONS,
    RUN_TRANSITIONS,
    TRIAL_TRANSITIONS,
)
from rollouts.storable import displayable, named

TRANSITIONS: dict[type[Stateful], dict[str, frozenset[str]]] = {
    Attempt: ATTEMPT_TRANSITIONS,
    Batch: BATCH_TRANSITIONS,
    Checkpoint: CHECKPOINT_TRANSITIONS,
    EnvironmentClient: CLIENT_TRANSITIONS,
    Evaluation: EVALUATION_TRANSITIONS,
    Export: EXPORT_TRANSITIONS,
    PolicyVersion: POLICY_VERSION_TRANSITIONS,
    Replica: REPLICA_TRANSITIONS,
    Run: RUN_TRANSITIONS,
    ScoredGroup: GROUP_TRANSITIONS,
    Trial: TRIAL_TRANSITIONS,
}
FLOWING: frozenset[type[Stateful]] = frozenset({Batch, ScoredGroup})
"""What flows through a run, all the time (`rollouts.bell`)."""
RUN_COLUMNS: dict[type[Stateful], LiteralString] = {
    Run: "t.id",
    EnvironmentClient: "(SELECT run_id FROM rollouts_attempt WHERE id = t.attempt_id)",
    Export: "NULL::bigint",
}
"""Where a row says which run it belongs to, if not in `run_id`."""
TEXT_LENGTH = 500
"""To which texts in a reason are cut."""
ACTOR_LENGTH = 150


class DbTime(NamedTuple):
    """As the value of a column: so many seconds after the moment of the change, by the database clock."""

    after_s: float = 0.0


DB_NOW = DbTime()


class EachOf(NamedTuple):
    """As the value of a column: one for each row, in the order of the ids, which are as many."""

    values: Sequence[Any]


StatefulT = TypeVar("StatefulT", bound=Stateful)


def transition(
    model: type[Stateful],
    ids: Iterable[int],
    *,
    to: str,
    actor: str,
    expect: Sequence[str] | None = None,
    reason: Reason | None = None,
    **columns: Any,
) -> list[int]:
    """Move rows to ``to`` if they are in an expected state; return the ids that moved, in order.

    ``expect`` defaults to every state from which ``to`` is allowed; naming a state from which it is not is a bug and
    raises ValueError. ``columns`` are written with the state, the same for all rows unless they are `EachOf`. Locks the
    rows moved, in id order.
    """
    ids = list(ids)
    allowed = [state for state, targets in TRANSITIONS[model].items() if to in targets]
    expect = allowed if expect is None else list(expect)
    if forbidden := set(expect) - set(allowed):
        raise ValueError(f"{model.__name__} may not go from {sorted(map(str, forbidden))} to {to!s}")
    if not ids:
        return []
    fields = {name: cast("models.Field[Any, Any]", model._meta.get_field(name)) for name in columns}
    assignments = [_assignment(fields[name], name, value) for name, value in columns.items()]
    query = pg.SQL(load("transition")).format(
        table=pg.Identifier(model._meta.db_table),
        assignments=pg.Composed(assignments),
        run_column=pg.SQL(RUN_COLUMNS.get(model, "t.run_id")),
    )
    code, params = stored(reason)
    values = {
        "ids": ids,
        "expect": [str(state) for state in expect],
        "to": str(to),
        "reason_code": code,
        "reason_params": json.dumps(params),
        "actor": named(actor)[:ACTOR_LENGTH],
        "object_kind": model._meta.model_name,
        **{f"set_{name}": _bound(fields[name], value) for name, value in columns.items()},
    }
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        cursor.nextset()  # the first statement only locks
        rows = cursor.fetchall()
    for run_id in {run_id for _, run_id in rows if run_id is not None}:
        bell.ring_after_commit(run_id, is_flow=model in FLOWING)
    return [row_id for row_id, _ in rows]


def _assignment(field: "models.Field[Any, Any]", name: str, value: Any) -> pg.Composable:
    """What sets a column, behind those before it."""
    if isinstance(value, DbTime):
        new: pg.Composable = pg.SQL("clock_timestamp() + make_interval(secs => {})").format(pg.Literal(value.after_s))
    elif isinstance(value, EachOf):
        # Without a length, to which a cast would cut what an assignment refuses.
        kind = cast("LiteralString", field.db_type(connection)).partition("(")[0]
        new = pg.SQL("({}::{}[])[array_position({}::bigint[], t.id)]").format(
            pg.Placeholder(f"set_{name}"), pg.SQL(kind), pg.Placeholder("ids")
        )
    else:
        new = pg.Placeholder(f"set_{name}")
    return pg.SQL(", {} = {}").format(pg.Identifier(str(field.column)), new)


def _bound(field: "models.Field[Any, Any]", value: Any) -> Any:
    if isinstance(value, EachOf):
        return [field.get_db_prep_save(each, connection) for each in value.values]
    return None if isinstance(value, DbTime) else field.get_db_prep_save(value, connection)


def move(row: StatefulT, *, to: str, actor: str, reason: Reason | None = None, **columns: Any) -> StatefulT:
    """Move one row; raise StateConflict if it is no longer in a state that allows it. Refreshes ``row``."""
    if not transition(type(row), [row.pk], to=to, actor=actor, reason=reason, **columns):
        row.refresh_from_db()
        raise StateConflict(f"{row._meta.verbose_name} {row} is {row.state}, which cannot become {to}")  # type: ignore[attr-defined]
    row.refresh_from_db()
    return row


def record_creation(
    rows: Sequence[Stateful],
    *,
    run_id: int | None,
    state: str,
    actor: str,
    reason: Reason | None = None,
) -> None:
    """Append the first event of freshly inserted rows of one run, or of none.

    Call it in the transaction that inserts them.
    """
    _append([(row, "", state) for row in rows], run_id, actor=actor, reason=reason)


def record_note(row: Stateful, *, run_id: int, actor: str, reason: Reason) -> None:
    """Append an event about something that changes no state. Call it in the transaction that does it."""
    record_notes([row], run_id=run_id, actor=actor, reason=reason)


def record_notes(rows: Iterable[Stateful], *, run_id: int, actor: str, reason: Reason) -> None:
    """As `record_note`, of rows of one run."""
    states = [(row, row.state) for row in rows]  # type: ignore[attr-defined]
    _append([(row, state, state) for row, state in states], run_id, actor=actor, reason=reason)


def _append(
    rows: Iterable[tuple[Stateful, str, str]], run_id: int | None, *, actor: str, reason: Reason | None
) -> None:
    """Events of rows, each with its state before and after."""
    code, params = stored(reason)
    rows = list(rows)
    Event.objects.bulk_create(
        Event(
            run_id=run_id,
            object_kind=str(row._meta.model_name),
            object_id=row.pk,
            from_state=str(before),
            to_state=str(after),
            reason_code=code,
            reason_params=params,
            actor=named(actor)[:ACTOR_LENGTH],
        )
        for row, before, after in rows
    )
    if run_id is not None:
        bell.ring_after_commit(run_id, is_flow=all(type(row) in FLOWING for row, _, _ in rows))


def stored(reason: Reason | None) -> tuple[str, dict[str, Any]]:
    """A reason as its two columns: texts cut, and without what Postgres cannot hold."""
    if reason is None:
        return "", {}
    return str(reason.code), {name: _stored_value(value) for name, value in reason.params.items()}


def _stored_value(value: Any) -> Any:
    if isinstance(value, Reason):
        code, params = stored(value)
        return {"code": code, "params": params}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return displayable(value)[:TEXT_LENGTH] if isinstance(value, str) else value
