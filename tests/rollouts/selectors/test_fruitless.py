"""When a run plays for nothing."""

import pytest

from rollouts.models import Run
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors.groups import fruitless
from rollouts.states import GroupState, RunState
from tests.factories import make_group, make_run
from trainers.config import resolve

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return make_run(state=RunState.RUNNING)


def lose(run: Run, times: int = 1, error: str = "environment: KeyError: 'x'") -> None:
    for _ in range(times):
        reason = Reason(ReasonCode.ALL_FAILED, error=error)
        make_group(run, rewards=[None], state=GroupState.FAILED, reason_code=reason.code, reason_params=reason.params)


def test_so_many_groups_without_use_in_a_row_are_told_by_the_last(run: Run) -> None:
    make_group(run)
    lose(run, 2)
    assert fruitless(run, 3) is None
    make_group(run, rewards=[1.0, 1.0], state=GroupState.FILTERED)
    last = fruitless(run, 3)
    assert last is not None
    assert last.state == GroupState.FILTERED
    make_group(run)
    assert fruitless(run, 3) is None


@pytest.mark.parametrize("state", [GroupState.READY, GroupState.BATCHED, GroupState.TRAINED, GroupState.STALE])
def test_one_that_could_be_trained_begins_the_count_anew(run: Run, state: GroupState) -> None:
    lose(run, 2)
    make_group(run, state=state)
    lose(run, 2)
    assert fruitless(run, 2) is not None
    assert fruitless(run, 3) is None


@pytest.mark.parametrize(
    "reason",
    [
        Reason(ReasonCode.LEASES_LOST, leases=3, holder="w"),
        Reason(ReasonCode.NOTHING_SAMPLED),
        Reason(ReasonCode.ALL_FAILED, error=None),
    ],
)
def test_a_failure_that_tells_no_error_counts_too(run: Run, reason: Reason) -> None:
    for _ in range(2):
        make_group(run, rewards=[None], state=GroupState.FAILED, reason_code=reason.code, reason_params=reason.params)
    assert fruitless(run, 2) is not None


def test_a_policy_that_was_away_says_nothing_of_the_environment(run: Run) -> None:
    lose(run, 1)
    lose(run, 5, error="policy: PolicyUnavailable: no answer")
    assert fruitless(run, 2) is None
    lose(run, 1)
    assert fruitless(run, 2) is not None


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [
        ({"batch.batch_size": 32, "sampling.group_size": 4}, 80),
        ({"batch.token_batch_size": 4_000}, 1_000),
        ({"batch.max_fruitless_groups": 7}, 7),
        ({"batch.max_fruitless_groups": 0}, 0),
    ],
)
def test_the_limit_is_ten_batches_unless_it_is_set(overrides: dict[str, int], limit: int) -> None:
    assert resolve("reverse-text-rl", overrides=overrides).config.fruitless_limit == limit
