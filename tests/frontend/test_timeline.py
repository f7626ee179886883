"""Where the time of an episode went: a lane each for the policy, tools and scoring, with its seconds beside it."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from frontend.pages.group.timeline import COLUMNS, MOST_LISTED, of_group
from rollouts.models import Rollout, Run, ScoredGroup
from tests import store
from tests.factories import make_group, make_run

TURNS = [["model", 0.0, 2.0], ["tools", 2.0, 1.0], ["model", 3.0, 4.0], ["scoring", 7.0, 1.0]]


def measured(run: Run, *spans: Any) -> ScoredGroup:
    """A group with a rollout for each list of spans."""
    group = make_group(run, rewards=[1.0] * len(spans))
    with store.beyond_rights():
        for index, each in enumerate(spans):
            Rollout.objects.filter(group=group, index=index).update(spans=each)
    return group


def page(client: Client, run: Run, group: ScoredGroup) -> str:
    return client.get(reverse("group", args=[run.key, group.key])).content.decode()


def test_each_lane_has_the_seconds_and_the_share_of_what_was_waited_for() -> None:
    [timeline] = of_group([TURNS])
    assert timeline is not None
    assert timeline.seconds == 8.0
    assert [(lane.label, lane.seconds, lane.share, lane.waits) for lane in timeline.lanes] == [
        ("policy", 6.0, 0.75, 2),
        ("tools", 1.0, 0.125, 1),
        ("scoring", 1.0, 0.125, 1),
    ]
    assert timeline.lanes[1].bars == [("25.00%", "12.50%")]


def test_the_episodes_of_a_group_are_drawn_to_one_scale() -> None:
    short, unmeasured, long = of_group([[["model", 0.0, 2.0]], None, [["model", 0.0, 8.0]]])
    assert short is not None
    assert long is not None
    assert unmeasured is None
    assert (short.lanes[0].bars, long.lanes[0].bars) == ([("0.00%", "25.00%")], [("0.00%", "100.00%")])


def test_what_overlaps_counts_once() -> None:
    [timeline] = of_group([[["model", 0.0, 3.0], ["model", 1.0, 3.0]]])
    assert timeline is not None
    assert (timeline.lanes[0].seconds, timeline.lanes[0].share, timeline.lanes[0].waits) == (4.0, 1.0, 2)


def test_an_episode_of_thousands_of_turns_is_drawn_in_few_bars_and_says_what_it_leaves_out() -> None:
    spans = [[("model", "tools")[at % 2], at / 100, 0.01] for at in range(4_000)]
    [timeline] = of_group([spans])
    assert timeline is not None
    assert [lane.waits for lane in timeline.lanes] == [2_000, 2_000]
    assert sum(len(lane.bars) for lane in timeline.lanes) <= 2 * COLUMNS
    assert (len(timeline.stretches), timeline.left_out) == (MOST_LISTED, 4_000 - MOST_LISTED)


@pytest.mark.parametrize("spans", [[["model", 0.0, 0.0]], [["tools", -1.0, 0.5]], [["scoring", 0, 1e30]]])
def test_no_figure_breaks_it(spans: Any) -> None:
    [timeline] = of_group([spans])
    assert timeline is not None
    assert all(0 <= float(number[:-1]) <= 100 for lane in timeline.lanes for bar in lane.bars for number in bar)


@pytest.mark.django_db
def test_the_page_of_a_group_says_it_in_words_beside_the_bars(client: Client) -> None:
    run = make_run()
    shown = page(client, run, measured(run, TURNS, None))
    assert shown.count("Episode of 8.0 s") == 1
    assert "6.0 s" in shown
    assert "75 %" in shown
    assert '<rect x="25.00%" width="12.50%"' in shown
    assert "4 stretches" in shown
    assert "style=" not in shown


@pytest.mark.django_db
def test_an_error_is_shown_with_its_traceback_and_what_its_process_wrote_as_text(client: Client) -> None:
    run = make_run()
    group = make_group(run, rewards=[None])
    hostile = "</pre><script>alert(1)</script>\u202e"
    error = {"kind": "environment", "type": f"T{hostile}", "message": f"M{hostile}"}
    with store.beyond_rights():
        Rollout.objects.filter(group=group).update(
            error=error | {"traceback": f"B{hostile}", "stderr": f"E{hostile}"}, error_kind="environment"
        )
    shown = page(client, run, group)
    assert "<script>alert" not in shown
    assert "\u202e" not in shown
    for begin in "TMBE":
        assert f"{begin}&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;<span" in shown
    assert "environment error" in shown
    assert "Traceback" in shown
    assert "stderr" in shown


@pytest.mark.django_db
def test_an_error_without_evidence_has_nothing_to_unfold(client: Client) -> None:
    run = make_run()
    shown = page(client, run, make_group(run, rewards=[None]))
    assert "no answer in 60 s" in shown
    assert "Traceback" not in shown
    assert "stderr" not in shown
