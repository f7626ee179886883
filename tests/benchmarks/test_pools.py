"""How runs with pools and without are compared, and which of them count."""

import argparse
import json

import pytest

from benchmarks import pools
from benchmarks.examples import held_out
from benchmarks.pools import Learned
from controlplane.cli import lessons
from rollouts.models import Run
from rollouts.states import EvaluationState, RunState
from tests.factories import make_evaluation, make_metrics, make_run

REWARD = "eval/reverse_text/reward"


def learned(steps: int | None, tokens: int) -> Learned:
    return Learned("run", steps, tokens, 10, 0.5, 0.5, {})


def evaluated(state: str, *, last: str = EvaluationState.DONE) -> Run:
    """A run of one step whose rewards were .4 and .9."""
    run = make_run(state=state, max_steps=1)
    make_evaluation(run, 0, 0.4)
    make_evaluation(run, 1, 0.9, state=last)
    make_metrics(run, REWARD, [0.4, 0.9])
    return run


def test_only_seeds_whose_both_runs_reached_the_target_are_compared() -> None:
    off = {1: learned(40, 4000), 2: learned(None, 9000), 3: learned(30, 3000), 4: learned(10, 1000)}
    on = {1: learned(20, 1000), 2: learned(10, 100), 3: learned(None, 9000)}
    found = pools.report({"off": off, "on": on})
    assert (found["pairs"], found["without_target"]) == (1, {"off": 1, "on": 1})
    assert (found["steps_ratio"], found["tokens_ratio"]) == (0.5, 0.25)
    assert "steps_ratio" not in pools.report({"off": {}, "on": on})
    json.dumps(found)


@pytest.mark.django_db
@pytest.mark.parametrize("state", [RunState.FAILED, RunState.STOPPED])
def test_a_run_that_failed_has_not_ended_without_the_target(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(state=state)
    monkeypatch.setattr(lessons, "launch", lambda _config, **_: run)
    with pytest.raises(lessons.NotDone, match=f"{run.key} is {state}, .* version 0 and 80"):
        pools.learn("reverse-text", 1, [], argparse.Namespace(every=4, steps=80, target=0.5))


@pytest.mark.django_db
def test_a_run_that_begins_with_the_target_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = evaluated(RunState.FINISHED)
    monkeypatch.setattr(lessons, "launch", lambda _config, **_: run)
    with pytest.raises(lessons.NotDone, match="raise --target"):
        pools.learn("reverse-text", 1, [], argparse.Namespace(every=1, steps=1, target=0.3))


@pytest.mark.django_db
def test_figures_of_an_evaluation_that_expired_count_for_nothing() -> None:
    assert held_out(evaluated(RunState.FINISHED)) == {0: 0.4, 1: 0.9}
    with pytest.raises(lessons.NotDone, match="all problems at version 1"):
        held_out(evaluated(RunState.FINISHED, last=EvaluationState.EXPIRED))
