"""A curator at work: a group is looked at, rejected, and given back."""

import pytest
from playwright.sync_api import expect

from rollouts import bell
from rollouts.models import Act, Label, ScoredGroup, Verb
from rollouts.services.curation import acts
from tests.browser.watched import Watched
from tests.factories import somebody
from tests.lanes import themes
from tests.rollouts import story

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", themes("dark"))
def test_a_group_is_rejected_and_the_act_is_undone(watched: Watched, theme: str) -> None:
    run = story.launch()
    story.submit(run, [story.scored("g")], actor="api:t")
    watched.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page = watched.open(f"/runs/{run.key}/groups/g/")
    page.get_by_label("What you speak of").select_option("rollout 1")
    page.get_by_label("Tags, with commas").fill("loop, hack")
    page.get_by_role("button", name="Say no").click()
    expect(page.locator("#people")).to_contain_text("user:ada")
    expect(page.locator("#people")).to_contain_text("hack")
    page.get_by_label("Why").fill("it exploits the judge")
    page.get_by_role("button", name="Reject from training").click()
    expect(page.locator("#people .notice")).to_contain_text("Rejected: it enters no batch")
    expect(page.get_by_role("button", name="Reject from training")).to_be_hidden()
    page.screenshot(path=f"test-results/people-group-{theme}.png", full_page=True)
    assert ScoredGroup.objects.get().state == "rejected"
    page.locator("#people").get_by_role("link", name="People").click()
    row = page.get_by_role("row", name="it exploits the judge")
    page.screenshot(path=f"test-results/people-{theme}.png", full_page=True)
    row.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("row", name="undo of reject")).to_be_visible()
    expect(row).to_contain_text("undone")
    group = ScoredGroup.objects.get()
    assert group.state == "ready"
    page.evaluate("window.notReloaded = true")
    acts.perform(run, Verb.EXCLUDE, [group.pk], user=somebody(), actor="user:cy", note="while it is watched")
    bell.ring_after_commit(run.pk)
    expect(page.get_by_role("row", name="while it is watched")).to_be_visible()
    assert not watched.was_reloaded


def test_enter_in_a_field_says_and_does_nothing(watched: Watched) -> None:
    run = story.launch()
    story.submit(run, [story.scored("g")], actor="api:t")
    page = watched.open(f"/runs/{run.key}/groups/g/")
    sent = watched.forms_sent()
    for field in ("Why", "Note"):
        page.get_by_label(field).fill("it is seen")
        page.get_by_label(field).press("Enter")
    page.get_by_role("button", name="Skip").click()
    expect(page.locator(".people-note")).to_have_text("it is seen")
    assert sent == [f"/runs/{run.key}/label/"]
    assert list(Label.objects.values_list("verdict", "note")) == [("skip", "it is seen")]
    assert not Act.objects.exists()
