"""The state machines as data, and the one function that applies them."""

import pytest

from rollouts import states
from rollouts.errors import StateConflict
from rollouts.models import Event, Run, ScoredGroup
from rollouts.models.stateful import Stateful
from rollouts.services import transitions
from rollouts.services.transitions import TRANSITIONS, move, transition
from rollouts.states import GroupState, RunState
from tests.factories import make_group, make_run, words

INITIAL: dict[str, set[str]] = {
    "RunState": {"pending"},
    "GroupState": {"playing", "ready", "filtered", "failed"},
    "BatchState": {"formed"},
    "PolicyVersionState": {"written"},
    "EvaluationState": {"playing"},
    "ReplicaState": {"starting"},
    "CheckpointState": {"complete"},
    "AttemptState": {"open", "started"},
    "ClientState": {"connected"},
    "TrialState": {"waiting"},
    "ExportState": {"queued"},
}
"""States that a row can be created in. A submitted group is settled when it is created."""

TERMINAL: dict[str, set[str]] = {
    "RunState": {"finished", "stopped", "failed"},
    "GroupState": {"trained", "evaluated", "stale", "filtered", "failed", "surplus"},
    "BatchState": {"trained"},
    "PolicyVersionState": {"superseded"},
    "EvaluationState": {"done", "expired"},
    "ReplicaState": {"exited", "lost"},
    "CheckpointState": set(),
    "AttemptState": {"closed"},
    "ClientState": {"left"},
    "TrialState": {"finished", "failed"},
    "ExportState": {"failed", "cancelled", "deleted"},
}
MACHINES = {model: next(iter(table)).__class__ for model, table in TRANSITIONS.items()}
by_model = pytest.mark.parametrize("model", list(TRANSITIONS), ids=lambda model: model.__name__)


def test_every_machine_and_every_model_with_a_state_is_covered() -> None:
    machines = {value for name, value in vars(states).items() if name.endswith("State")}
    assert set(MACHINES.values()) == machines
    assert set(TRANSITIONS) == set(Stateful.__subclasses__())


@by_model
def test_every_state_is_initial_or_reachable(model: type[Stateful]) -> None:
    machine, table = MACHINES[model], TRANSITIONS[model]
    seen = set(INITIAL[machine.__name__])
    while more := {target for state in seen for target in table.get(state, ())} - seen:
        seen |= more
    assert seen == set(machine.values)


@by_model
def test_terminal_states_have_no_exits_and_all_others_have_one(model: type[Stateful]) -> None:
    machine, table = MACHINES[model], TRANSITIONS[model]
    assert {state for state in machine.values if not table.get(state)} == TERMINAL[machine.__name__]


@by_model
def test_from_every_state_an_end_can_be_reached_or_the_beginning_again(model: type[Stateful]) -> None:
    machine, table = MACHINES[model], TRANSITIONS[model]
    ended = set(TERMINAL[machine.__name__] or INITIAL[machine.__name__])
    while more := {state for state, targets in table.items() if targets & ended} - ended:
        ended |= more
    assert ended == set(machine.values)


@by_model
def test_every_state_has_a_sentence_and_fits_its_column(model: type[Stateful]) -> None:
    column = model._meta.get_field("state")
    for state in MACHINES[model]:
        assert str(state.label).endswith(".")
        assert state.value.isascii()
        assert len(state.value) <= (getattr(column, "max_length", 0) or 0)


@pytest.mark.django_db
def test_only_rows_in_an_expected_state_move_and_each_leaves_one_event() -> None:
    run = make_run()
    ready = [make_group(run) for _ in range(2)]
    other = make_group(run, state=GroupState.TRAINED)
    ids = [other.pk, ready[1].pk, ready[0].pk]
    moved = transition(ScoredGroup, ids, to=GroupState.STALE, actor="user:ada", reason=words("a\0b"))
    assert moved == [ready[0].pk, ready[1].pk]
    assert transition(ScoredGroup, ids, to=GroupState.STALE, actor="user:ada") == []
    events = Event.objects.filter(object_kind="scoredgroup").order_by("id")
    assert [(each.object_id, each.from_state, each.to_state, each.actor, str(each.reason)) for each in events] == [
        (pk, "ready", "stale", "user:ada", "a\ufffdb") for pk in moved
    ]
    other.refresh_from_db()
    assert other.state == GroupState.TRAINED


@pytest.mark.django_db
def test_a_change_that_the_table_does_not_have_is_a_bug() -> None:
    run = make_run(state=RunState.FINISHED)
    with pytest.raises(ValueError, match=r"may not go from \['finished'\] to running"):
        transition(Run, [run.pk], to=RunState.RUNNING, expect=[RunState.FINISHED], actor="x")


@pytest.mark.django_db
def test_who_loses_a_race_is_told_the_state_it_found() -> None:
    run = make_run(state=RunState.RUNNING)
    stale = Run.objects.get(pk=run.pk)
    move(run, to=RunState.STOPPING, actor="user:ada")
    with pytest.raises(StateConflict, match="is stopping, which cannot become finishing"):
        move(stale, to=RunState.FINISHING, actor="trainer:1")
    assert stale.state == RunState.STOPPING


@pytest.mark.django_db
def test_an_overlong_reason_is_cut() -> None:
    run = make_run(state=RunState.PENDING)
    transition(Run, [run.pk], to=RunState.STOPPING, actor="u" * 300, reason=words("r" * 2000))
    event = Event.objects.get()
    assert (len(str(event.reason)), len(event.actor)) == (transitions.TEXT_LENGTH, transitions.ACTOR_LENGTH)
