"""The annotator by keyboard alone: one item, one screen, one key, and the next item is there."""

import pytest
from playwright.sync_api import expect

from rollouts.models import Label
from rollouts.services.curation import queues
from tests.browser.watched import Watched
from tests.rollouts import story

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_items_are_worked_through_by_keys(watched: Watched, theme: str) -> None:
    run = story.launch()
    story.submit(run, [story.scored(f"g{number}") for number in range(4)], actor="api:t")
    queue = queues.create(
        run.project, name="Loops", actor="user:ada", tags=["loop", "hack"], guideline="Does it\nrepeat itself?"
    )
    watched.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page = watched.open(f"/queues/{queue.key}/annotate/")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="g0")).to_be_visible()
    page.keyboard.press("2")
    page.keyboard.press("n")
    page.keyboard.type("it axes a line")  # letters in a note are letters
    page.reload()
    expect(page.get_by_label("hack")).to_be_checked()
    expect(page.get_by_label("Note")).to_have_value("it axes a line")
    page.screenshot(path=f"test-results/annotator-{theme}.png")
    page.keyboard.press("x")
    expect(page.get_by_role("link", name="g1")).to_be_visible()
    expect(page.get_by_label("Note")).to_have_value("")
    page.keyboard.press("a")
    expect(page.get_by_role("link", name="g2")).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_role("link", name="g1")).to_be_visible()
    page.keyboard.press("s")
    expect(page.get_by_role("link", name="g2")).to_be_visible()
    said = (
        Label.objects.filter(superseded_by__isnull=True).order_by("group__key").values_list("verdict", "tags", "note")
    )
    assert list(said) == [("reject", ["hack"], "it axes a line"), ("skip", [], "")]
    watched.open(f"/queues/{queue.key}/")
    page.screenshot(path=f"test-results/queue-{theme}.png", full_page=True)


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_of_queues_scrolls_sideways(watched: Watched, width: int) -> None:
    run = story.launch()
    story.submit(run, [story.scored("k" * 60)], actor="api:t")
    queue = queues.create(run.project, name="n" * 100, actor="user:ada", guideline="g" * 2_000, tags=["t" * 40])
    watched.page.set_viewport_size({"width": width, "height": 800})
    page = watched.open(f"/queues/{queue.key}/annotate/")
    page.get_by_role("button", name="Take the next item").click()
    expect(page.get_by_role("button", name="Accept")).to_be_visible()
    for path in (f"/queues/{queue.key}/annotate/", f"/queues/{queue.key}/", "/queues/"):
        page = watched.open(path)
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{path} is {overflow} px too wide"
    page.screenshot(path=f"test-results/queues-{width}.png", full_page=True)
