"""Statistics worked by hand."""

import pytest

from benchmarks.wire_load import figures


def test_a_percentile_is_the_nearest_rank() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [figures.percentile(values, share) for share in (0.01, 0.2, 0.5, 0.9, 1.0)] == [1, 1, 3, 5, 5]


def test_the_99th_percentile_of_a_hundred_values_leaves_out_one() -> None:
    assert figures.percentile([float(value) for value in range(1, 101)], 0.99) == 99


def test_latencies_are_in_milliseconds() -> None:
    found = figures.latencies([0.002, 0.001, 0.010], "later_")
    assert found == pytest.approx({"later_p50_ms": 2, "later_p90_ms": 10, "later_p99_ms": 10, "later_max_ms": 10})


def test_a_spread_is_the_median_and_the_range() -> None:
    assert figures.spread([4.0, 1.0, 2.0]) == figures.Spread(median=2, min=1, max=4)


def test_ratios_are_taken_pair_by_pair_and_only_of_what_both_sides_have() -> None:
    ours = [{"groups_per_s": 20.0, "max_ms": 1.0, "web_mb": 1.0}, {"groups_per_s": 30.0, "max_ms": 1.0}]
    others = [{"groups_per_s": 10.0, "max_ms": 0.0}, {"groups_per_s": 5.0, "max_ms": 2.0}]
    found = figures.ratios(ours, others)
    assert found == {"groups_per_s": figures.Spread(4, 2, 6), "max_ms": figures.Spread(0.5, 0.5, 0.5)}


def test_rounds_that_are_no_pairs_have_no_ratios() -> None:
    with pytest.raises(ValueError, match="zip"):
        figures.ratios([{"p50_ms": 1.0}], [])


def test_a_report_of_two_sides_holds_rounds_spreads_and_ratios() -> None:
    found = figures.report({"ours": [{"p50_ms": 1.0}], "other": [{"p50_ms": 3.0}]})
    assert found["ours"] == {
        "spread": {"p50_ms": {"median": 1.0, "min": 1.0, "max": 1.0}},
        "rounds": [{"p50_ms": 1.0}],
    }
    assert found["ratio"]["p50_ms"]["median"] == pytest.approx(1 / 3, rel=1e-5)


def test_a_table_has_a_column_per_side_and_one_of_ratios() -> None:
    rounds = {"ours": [{"p50_ms": 1.0}, {"p50_ms": 2.0}], "other": [{"p50_ms": 4000.0, "max_ms": 9.0}] * 2}
    header, first, second = figures.table(figures.report(rounds))
    assert header.split("  ")[0] == "median (min to max)"
    assert header.split()[-3:] == ["ours", "other", "ratio"]
    assert first.split() == ["p50_ms", "1.5", "(1", "to", "2)", "4,000", "0.000375", "(0.00025", "to", "0.0005)"]
    assert second.split() == ["max_ms", "-", "9", "-"]
