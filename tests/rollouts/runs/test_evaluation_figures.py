"""What an evaluation found is worked out while nothing is locked, and no death on the way loses it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from environments.figures import summarise
from rollouts.errors import StateConflict
from rollouts.models import Evaluation, MetricPoint, Run
from rollouts.selectors import evaluations as selected
from rollouts.services.groups import evaluations
from rollouts.services.runs import life
from rollouts.states import EvaluationState, RunState
from tests.rollouts import story

pytestmark = pytest.mark.django_db


def measuring(problems: int = 1) -> Run:
    """A run of which one problem of its evaluation was played, once well and once not."""
    run = story.launch(evaluation={"problems": problems, "rollouts_per_problem": 2})
    claim, *_ = story.claim(run, problems)
    story.settle(claim, [1.0, 0.0])
    return run


def stop(run: Run) -> None:
    life.request_stop(run, actor="user:ada")
    life.end(run, to=RunState.STOPPED)


def broken(*_: Any, **__: Any) -> dict[str, Any]:
    raise MemoryError("killed here")


def seen_by_others(pid: int) -> str:
    """What a session of the database does, as another one sees it."""

    def ask() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [pid])
            state = str(cursor.fetchone()[0])
        connection.close()
        return state

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result(10)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("problems", "close", "state"),
    [(1, evaluations.conclude, EvaluationState.DONE), (2, stop, EvaluationState.EXPIRED)],
    ids=["when all is played", "when its run ends"],
)
def test_figures_are_worked_out_in_no_transaction(
    problems: int, close: Callable[[Run], None], state: EvaluationState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database ends a session that is idle in a transaction for so long, and every later try of it."""
    during = []

    def look(*args: Any, **kwargs: Any) -> dict[str, Any]:
        assert connection.connection is not None
        during.append(seen_by_others(connection.connection.info.backend_pid))
        return summarise(*args, **kwargs)

    monkeypatch.setattr(selected, "summarise", look)
    close(measuring(problems))
    found = Evaluation.objects.get()
    assert (during, found.state, found.figures["rollouts"]) == (["idle"], state, 2)


def test_figures_that_were_not_stored_when_their_evaluation_was_closed_are_made_up_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = measuring()
    monkeypatch.setattr(selected, "summarise", broken)
    with pytest.raises(MemoryError):
        evaluations.conclude(run)
    found = Evaluation.objects.get()
    assert (found.state, found.reward_mean, found.figures) == (EvaluationState.DONE, 0.5, None)
    assert selected.told(found)["figures"] is None
    monkeypatch.undo()
    evaluations.conclude(run)
    found.refresh_from_db()
    assert found.figures["avg@2"]["value"] == 0.5
    assert MetricPoint.objects.get(key="eval/reverse_text/reward").value == 0.5
    monkeypatch.setattr(selected, "summarise", broken)
    evaluations.conclude(run)


def test_no_run_ends_before_its_evaluations_have_their_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    run = measuring(problems=2)
    monkeypatch.setattr(selected, "summarise", broken)
    with pytest.raises(MemoryError):
        stop(run)
    found = Evaluation.objects.get()
    assert (found.state, found.figures) == (EvaluationState.EXPIRED, None)
    assert story.fresh(run).state == RunState.STOPPING, "whoever ends it next goes on"
    monkeypatch.undo()
    life.end(run, to=RunState.STOPPED)
    found.refresh_from_db()
    assert (found.state_reason, found.figures["rollouts"]) == ("the run was stopped", 2)


def test_a_run_does_not_end_under_an_evaluation_that_was_opened_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    run = measuring(problems=2)
    life.request_stop(run, actor="user:ada")
    monkeypatch.setattr(evaluations, "end", lambda *_, **__: None)  # as it was before the evaluation was opened
    with pytest.raises(StateConflict, match="opened while it ended"):
        life.end(run, to=RunState.STOPPED)
    assert story.fresh(run).state == RunState.STOPPING
    monkeypatch.undo()
    assert life.end(run, to=RunState.STOPPED).state == RunState.STOPPED


def test_an_evaluation_of_which_nothing_was_played_has_no_figures_and_nobody_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = story.launch(evaluation={"problems": 2})
    story.claim(run, 1)
    monkeypatch.setattr(selected, "summarise", broken)
    monkeypatch.setattr(selected, "figures", broken)
    stop(run)
    found = Evaluation.objects.get()
    assert (found.state, found.figures) == (EvaluationState.EXPIRED, None)
