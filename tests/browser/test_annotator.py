"""The annotator by keyboard alone: one item, one screen, one key, and the next item is there."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from rollouts.models import Label, QueueTurn
from rollouts.services.curation import queues, turns
from tests.browser.watched import Watched
from tests.factories import somebody
from tests.lanes import themes
from tests.rollouts import story

pytestmark = pytest.mark.browser


def look_at(page: Page, group: str) -> None:
    """Wait for the item of a group, and until its page listens to keys."""
    expect(page.get_by_role("link", name=group)).to_be_visible()
    page.wait_for_load_state()


@pytest.mark.parametrize("theme", themes("light"))
def test_items_are_worked_through_by_keys(watched: Watched, theme: str) -> None:
    run = story.launch()
    story.submit(run, [story.scored(f"g{number}") for number in range(4)], actor="api:t")
    queue = queues.create(
        run.project, name="Loops", actor="user:ada", tags=["loop", "hack"], guideline="Does it\nrepeat itself?"
    )
    watched.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page = watched.open(f"/queues/{queue.key}/annotate/")
    page.keyboard.press("Enter")
    look_at(page, "g0")
    page.keyboard.press("2")
    page.keyboard.press("n")
    page.keyboard.type("it axes a line")  # letters in a note are letters
    page.wait_for_load_state()  # else it is what loads still that is given up
    page.reload()
    expect(page.get_by_label("hack")).to_be_checked()
    expect(page.get_by_label("Note")).to_have_value("it axes a line")
    page.screenshot(path=f"test-results/annotator-{theme}.png")
    page.keyboard.press("x")
    look_at(page, "g1")
    expect(page.get_by_label("Note")).to_have_value("")
    page.keyboard.down("a")
    look_at(page, "g2")
    page.keyboard.down("a")  # it is held, and repeats: nobody has looked at this one
    page.keyboard.up("a")
    page.keyboard.press("u")
    look_at(page, "g1")
    page.keyboard.press("s")
    look_at(page, "g2")
    said = (
        Label.objects.filter(superseded_by__isnull=True).order_by("group__key").values_list("verdict", "tags", "note")
    )
    assert list(said) == [("reject", ["hack"], "it axes a line"), ("skip", [], "")]
    watched.open(f"/queues/{queue.key}/")
    page.screenshot(path=f"test-results/queue-{theme}.png", full_page=True)
    for answer in ("Keep it open", "Close the queue"):
        page.get_by_role("button", name="Close…").click()
        page.get_by_role("dialog").get_by_role("button", name=answer).click()
    expect(page.get_by_text("nothing is given out any more")).to_be_visible()
    expect(page.get_by_role("button", name="Close…")).to_have_count(0)


def test_enter_on_a_link_follows_it_and_takes_no_item(watched: Watched) -> None:
    run = story.launch()
    story.submit(run, [story.scored("g0")], actor="api:t")
    queue = queues.create(run.project, name="Loops", actor="user:ada")
    page = watched.open(f"/queues/{queue.key}/annotate/")
    page.get_by_role("link", name="Queues").last.press("Enter")
    expect(page).to_have_url(f"{watched.base_url}/queues/")
    assert not QueueTurn.objects.exists()


def test_enter_in_a_field_says_nothing_of_an_item(watched: Watched) -> None:
    run = story.launch()
    story.submit(run, [story.scored("g0")], actor="api:t")
    queue = queues.create(run.project, name="Loops", actor="user:ada")
    page = watched.open(f"/queues/{queue.key}/annotate/")
    page.keyboard.press("Enter")
    look_at(page, "g0")
    sent = watched.forms_sent()
    page.locator("#say-score").fill("0.5")
    page.locator("#say-score").press("Enter")
    page.get_by_role("button", name="Skip").click()
    expect(page.get_by_text("Nothing is yours now")).to_be_visible()
    assert sent == [f"/queues/{queue.key}/say/"]
    assert list(Label.objects.values_list("verdict", "score")) == [("skip", 0.5)]


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_of_queues_scrolls_sideways(watched: Watched, width: int) -> None:
    run = story.launch()
    story.submit(run, [story.scored("k" * 60)], actor="api:t")
    queue = queues.create(run.project, name="n" * 100, actor="user:ada", guideline="g" * 2_000, tags=["t" * 40])
    watched.page.set_viewport_size({"width": width, "height": 800})
    page = watched.open(f"/queues/{queue.key}/annotate/")
    page.get_by_role("button", name="Take the next item").click()
    expect(page.get_by_role("button", name="Accept")).to_be_visible()
    pairs = queues.create(run.project, name="w" * 100, actor="user:ada", unit="pair", tags=["t" * 40])
    turns.take(pairs, User.objects.get(username="ada"))
    shown = [f"/queues/{each.key}/{part}" for each in (queue, pairs) for part in ("annotate/", "")]
    for path in (*shown, "/queues/"):
        page = watched.open(path)
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{path} is {overflow} px too wide"
    page.screenshot(path=f"test-results/queues-{width}.png", full_page=True)


def spoken(key: str, *replies: str) -> Any:
    """A group whose rollouts reply so."""
    group = story.scored(key)
    for rollout, reply in zip(group.rollouts, replies, strict=True):
        rollout.messages = [
            {"role": "user", "content": "Why is the sky blue?"},
            {"role": "assistant", "content": reply},
        ]
    return group


@pytest.mark.parametrize("theme", themes("dark"))
def test_pairs_are_worked_through_by_the_arrows(watched: Watched, theme: str) -> None:
    run = story.launch()
    replies = (
        "Air scatters short waves more than long ones, so blue comes from all sides.",
        "Air is blue. So is water.",
    )
    story.submit(run, [spoken(f"g{number}", *replies) for number in range(4)], actor="api:t")
    queue = queues.create(run.project, name="Which is better?", actor="user:ada", unit="pair", tags=["kind"])
    watched.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page = watched.open(f"/queues/{queue.key}/annotate/")
    page.keyboard.press("Enter")
    look_at(page, "g0")
    left = page.get_by_role("article", name="Left")
    expect(left.locator("mark").first).to_be_visible()
    best = "left" if "scatters" in left.inner_text() else "right"
    page.keyboard.press("1")
    page.screenshot(path=f"test-results/pair-{theme}.png", full_page=True)
    page.keyboard.press("ArrowLeft")
    look_at(page, "g1")
    page.keyboard.press("t")
    look_at(page, "g2")
    page.keyboard.press("u")
    look_at(page, "g1")
    page.keyboard.press("s")
    look_at(page, "g2")
    said = Label.objects.filter(superseded_by__isnull=True).order_by("group__key")
    preference = "first" if best == "left" else "other"
    assert list(said.values_list("verdict", "preference", "tags")) == [
        ("accept", preference, ["kind"]),
        ("skip", "", []),
    ]


@pytest.mark.parametrize("theme", themes("dark"))
def test_a_reply_is_corrected_and_its_draft_survives_a_reload(watched: Watched, theme: str) -> None:
    run = story.launch()
    group = spoken("g0", "\nBecause air is blue.", "No idea.")
    group.rollouts[0].messages[-1]["reasoning_content"] = "The sea is blue too."  # type: ignore[index]
    story.submit(run, [group], actor="api:t")
    queue = queues.create(run.project, name="Correct it", actor="user:ada", unit="rollout")
    watched.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page = watched.open(f"/queues/{queue.key}/annotate/")
    page.keyboard.press("Enter")
    look_at(page, "g0")
    reply = page.get_by_label("What it should have said")
    expect(reply).to_be_hidden()
    page.keyboard.press("e")
    expect(reply).to_be_focused()
    expect(reply).to_have_value("\nBecause air is blue.")
    reply.fill("\nBecause air scatters blue light.")
    thoughts = page.get_by_label("What it should have thought")
    expect(thoughts).to_have_value("The sea is blue too.")
    thoughts.fill("What scatters?")
    page.wait_for_load_state()  # else it is what loads still that is given up
    page.reload()
    expect(reply).to_have_value("\nBecause air scatters blue light.")
    expect(thoughts).to_have_value("What scatters?")
    page.screenshot(path=f"test-results/correct-{theme}.png", full_page=True)
    page.keyboard.press("a")
    expect(page.get_by_role("article", name="Rollout 1")).to_be_visible()
    page.wait_for_load_state()
    page.keyboard.press("a")
    expect(page.get_by_text("Nothing is yours now")).to_be_visible()
    said = list(Label.objects.order_by("id"))
    assert said[0].edited is not None
    changed = {"content": "\nBecause air scatters blue light.", "reasoning_content": "What scatters?"}
    assert [said[0].edited[-1], said[1].edited] == [{"role": "assistant"} | changed, None]
    watched.open(f"/runs/{run.key}/groups/g0/")
    expect(page.get_by_text("Corrected by user:ada")).to_be_visible()
    page.screenshot(path=f"test-results/corrected-{theme}.png", full_page=True)


@pytest.mark.parametrize("theme", themes("light"))
def test_a_disagreement_is_decided_by_one_key(watched: Watched, theme: str) -> None:
    run = story.launch()
    story.submit(run, [story.scored("g0"), story.scored("g1")], actor="api:t")
    source = queues.create(run.project, name="Loops", actor="user:ada", words_per_item=2)
    for name, verdict in (("cy", "accept"), ("di", "reject")):
        turn = turns.take(source, somebody(name))
        assert turn is not None
        turns.answer(turn, user=somebody(name), actor=f"user:{name}", verdict=verdict, note=f"{name} says so")
    watched.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page = watched.open(f"/queues/{source.key}/")
    page.get_by_role("link", name="adjudicate").click()
    page.get_by_label("Name").fill("Decide")
    page.screenshot(path=f"test-results/make-queue-{theme}.png", full_page=True)
    page.get_by_role("button", name="Make the queue").click()
    page.get_by_role("link", name="Look at items").click()
    expect(page.get_by_role("button", name="Take the next item")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("di says so")).to_be_visible()
    page.wait_for_load_state()
    page.screenshot(path=f"test-results/adjudicate-{theme}.png", full_page=True)
    page.keyboard.press("x")
    expect(page.get_by_text("Nothing is yours now")).to_be_visible()
    watched.open(f"/runs/{run.key}/groups/g0/")
    expect(page.get_by_text("adjudicated by user:ada")).to_be_visible()
    page.screenshot(path=f"test-results/decided-{theme}.png", full_page=True)
    watched.open(f"/queues/{source.key}/")
    page.screenshot(path=f"test-results/source-{theme}.png", full_page=True)
