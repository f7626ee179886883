"""A run in a dozen numbers."""

import pytest

from rollouts.selectors.summary import summarise
from tests.factories import make_metrics, make_run

pytestmark = pytest.mark.django_db


def test_what_the_engine_makes_of_the_weights_is_told_apart_from_how_old_they_were() -> None:
    run = make_run()
    make_metrics(run, "lag/max", [0, 2, 0, 1])
    make_metrics(run, "mismatch_kl/mean", [0.0001, 0.01, 0.0003, 0.02])
    make_metrics(other := make_run(), "lag/max", [0])
    make_metrics(other, "mismatch_kl/mean", [1.0])
    summary = summarise(run)
    assert summary.mismatch_kl_mean == pytest.approx(0.0076)
    assert summary.mismatch_kl_on_policy == pytest.approx(0.0002)


def test_a_run_that_never_trained_on_its_own_weights_has_no_mismatch_of_the_engine_alone() -> None:
    run = make_run()
    make_metrics(run, "lag/max", [1, 2])
    make_metrics(run, "mismatch_kl/mean", [0.01, 0.01])
    assert summarise(run).mismatch_kl_on_policy is None
