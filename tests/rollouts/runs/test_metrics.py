"""Metric points: written again they are overwritten, in parts they add up; series are bucketed."""

import math
from typing import Any

import pytest

from rollouts.errors import Invalid
from rollouts.models import MetricPoint
from rollouts.selectors import metrics as selectors
from rollouts.services import metrics
from tests.factories import make_metrics, make_run
from tests.rollouts import story

pytestmark = pytest.mark.django_db
concurrent = pytest.mark.django_db(transaction=True)


def test_a_point_written_again_is_overwritten() -> None:
    run = make_run()
    metrics.record(run, step=3, values={"loss/mean": 2.0, "lr": 0.1})
    metrics.record(run, step=3, values={"loss/mean": 1.0})
    assert dict(MetricPoint.objects.values_list("key", "value")) == {"loss/mean": 1.0, "lr": 0.1}


def test_parts_of_a_point_add_up() -> None:
    run = make_run()
    for part in (1.5, 2.0):
        metrics.accumulate(run, step=3, values={"time/wait_for_policy": part})
    assert MetricPoint.objects.get().value == 3.5


@concurrent
def test_parts_from_many_workers_at_once_add_up_without_a_deadlock() -> None:
    run = make_run()
    keys = [f"k/{number}" for number in range(20)]
    forwards, backwards = dict.fromkeys(keys, 1.0), dict.fromkeys(reversed(keys), 1.0)
    story.together(
        *[lambda: metrics.accumulate(run, step=0, values=forwards)] * 4,
        *[lambda: metrics.accumulate(run, step=0, values=backwards)] * 4,
    )
    assert set(MetricPoint.objects.values_list("value", flat=True)) == {8.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_a_value_that_is_no_number_is_refused_and_named(value: float) -> None:
    run = make_run()
    with pytest.raises(Invalid) as caught:
        metrics.record(run, step=0, values={"loss/mean": value, "lr": 0.1})
    assert caught.value.fields == {"metrics.loss/mean": "must be finite"}
    assert not MetricPoint.objects.exists()


@pytest.mark.parametrize("key", ["", "k" * 101, "a\0b", "a\ud800"])
def test_a_key_that_cannot_be_is_refused(key: str) -> None:
    with pytest.raises(Invalid):
        metrics.record(make_run(), step=0, values={key: 1.0})


def test_too_many_keys_are_refused() -> None:
    with pytest.raises(Invalid):
        metrics.record(make_run(), step=0, values={f"k{number}": 1.0 for number in range(metrics.MAX_KEYS + 1)})


def test_of_what_others_name_is_kept_what_fits_with_what_matters_most_first() -> None:
    run = make_run()
    half = metrics.MAX_KEYS // 2
    first = {f"a/{number}": 1.0 for number in range(half)} | {"k" * 101: 1.0, "nan": math.nan, "b\u202e": 1.0}
    second = {f"b/{number}": 2.0 for number in range(half)} | {"a/0": 2.0}
    found = metrics.fitting(first, second, {"c": 3.0}, {"a/1": 4.0})
    metrics.record(run, step=0, values=found)
    assert len(found) == metrics.MAX_KEYS
    assert (found["a/0"], found["a/1"]) == (1.0, 1.0), "the first says it"
    assert metrics.fitting(first, second | {"b/more": 2.0}, {"c": 3.0}).keys() == {f"a/{at}" for at in range(half)}


def test_a_short_series_is_given_point_by_point() -> None:
    run = make_run()
    make_metrics(run, "loss/mean", [3.0, 2.0, 1.0])
    assert selectors.series(run, ["loss/mean", "none"]) == {
        "loss/mean": [(0, 3.0, 3.0, 3.0, 0), (1, 2.0, 2.0, 2.0, 1), (2, 1.0, 1.0, 1.0, 2)],
        "none": [],
    }
    assert selectors.series(run, ["loss/mean"], after_step=1) == {"loss/mean": [(2, 1.0, 1.0, 1.0, 2)]}


@pytest.mark.parametrize(("count", "points"), [(10, 5), (10, 3), (1000, 7), (4000, 1500), (11, 10)])
def test_a_long_series_has_at_most_as_many_points_as_asked_and_keeps_extremes(count: int, points: int) -> None:
    run = make_run()
    values = [float((number * 37) % 101) for number in range(count)]
    make_metrics(run, "k", values, first_step=5)
    series = selectors.series(run, ["k"], points=points)["k"]
    assert 0 < len(series) <= points
    assert min(low for _, _, low, _, _ in series) == min(values)
    assert max(high for _, _, _, high, _ in series) == max(values)
    assert series[-1][0] == 5 + count - 1
    assert [point[0] for point in series] == sorted({point[0] for point in series})
    assert [first for *_, first in series] == [5, *(point[0] + 1 for point in series[:-1])]


def test_the_newest_point_of_each_key_is_found_in_one_query(django_assert_num_queries: Any) -> None:
    run = make_run()
    make_metrics(run, "a", [1.0, 2.0])
    make_metrics(run, "b", [5.0])
    with django_assert_num_queries(1):
        assert selectors.latest(run, ["a", "b", "c"]) == {"a": (1, 2.0), "b": (0, 5.0)}
    assert selectors.list_keys(run) == ["a", "b"]


def test_sparklines_of_many_runs_are_one_query(django_assert_num_queries: Any) -> None:
    runs = [make_run() for _ in range(3)]
    make_metrics(runs[0], "reward/mean", [0.0, 1.0])
    make_metrics(runs[1], "reward/mean", [float(step) for step in range(400)])
    with django_assert_num_queries(1):
        lines = selectors.sparklines([run.pk for run in runs])
    assert lines[runs[0].pk] == [0.0, 1.0]
    assert 0 < len(lines[runs[1].pk]) <= 40
    assert lines[runs[1].pk][-1] == 399.0
    assert runs[2].pk not in lines
