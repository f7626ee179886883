"""What a person does with keyboard and mouse."""

import re

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from playwright.sync_api import Browser, Page, expect

from rollouts import bell
from rollouts.models import Run, TokenValues, Verb
from rollouts.services.curation import acts, labels
from rollouts.states import RunState
from tests import store
from tests.browser.conftest import session_cookie
from tests.browser.server import Server
from tests.browser.watched import Watched, watch
from tests.factories import make_batch, make_group, make_lively_run, make_metrics, make_run, somebody
from tests.model_files import make_warm
from tests.rollouts import story
from trainers.wire import MaskReason

pytestmark = pytest.mark.browser


def test_signing_in_and_out(browser: Browser, server: Server, operator: User) -> None:
    operator.password = PBKDF2PasswordHasher().encode("correct horse", "salt", 1000)
    operator.save()
    context = browser.new_context()
    with watch(context, server.url) as watched:
        page = watched.open("/")
        page.get_by_label("User name").fill("ada")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("correct username and password")
        page.get_by_label("Password").fill("correct horse")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
        page.get_by_label("Account").click()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in to Rollyard")).to_be_visible()
    context.close()


def test_a_run_that_needs_trust_says_so_and_an_administrator_grants_it(watched: Watched, operator: User) -> None:
    model = make_warm()
    page = watched.open("/runs/new/?preset=reverse-text-rl")
    expect(page.get_by_text("Ready to launch")).to_be_visible()
    page.locator("#id-toml").fill("model.trust_remote_code = true")
    summary = page.locator("#launch-summary")
    expect(summary).to_contain_text("which is not allowed here")
    expect(summary).to_contain_text("Ask an administrator")
    User.objects.filter(pk=operator.pk).update(is_superuser=True)
    page.reload()
    page.locator("#id-toml").fill("model.trust_remote_code = true")
    expect(summary).to_contain_text("You may allow it")
    summary.get_by_role("link", name=model.source).click()
    expect(page.get_by_label("Name")).to_have_value(model.source)
    page.get_by_role("button", name="Allow").click()
    expect(page.get_by_role("status")).to_contain_text("may execute")
    expect(page.get_by_role("row", name=model.source)).to_contain_text("user:ada")
    page.screenshot(path="test-results/trust.png")
    page = watched.open("/runs/new/?preset=reverse-text-rl")
    page.locator("#id-toml").fill("model.trust_remote_code = true")
    expect(page.get_by_text("Ready to launch")).to_be_visible()
    page.get_by_role("button", name="Launch").click()
    expect(page.locator("#run-status")).to_contain_text("Waiting for the reconciler")
    assert Run.objects.get().parsed.model.trust_remote_code


def test_a_run_is_launched_from_a_preset_after_a_mistake(watched: Watched) -> None:
    make_warm()
    page = watched.open("/")
    page.get_by_role("link", name="Launch the first run").click()
    page.get_by_role("link", name="reverse-text-rl").click()
    expect(page.get_by_text("Ready to launch")).to_be_visible()
    page.get_by_label("Batch size").fill("100")
    expect(page.locator("#launch-summary")).to_contain_text("1 thing to mend")
    page.get_by_role("button", name="Launch").click()
    expect(page.get_by_label("Batch size")).to_have_attribute("aria-invalid", "true")
    watched.faults.clear()  # the form was answered with 422, as it should
    page.get_by_label("Batch size").fill("64")
    expect(page.locator("#launch-summary")).to_contain_text("8 groups of 8")
    page.get_by_role("button", name="Launch").click()
    expect(page.locator("#run-status")).to_contain_text("Waiting for the reconciler")
    run = Run.objects.get()
    assert run.parsed.batch.batch_size == 64
    expect(page).to_have_url(f"{watched.base_url}/runs/{run.key}/")


def test_a_session_that_ends_while_a_form_is_filled_in_takes_nothing_of_it(
    watched: Watched, server: Server, operator: User
) -> None:
    page = watched.open("/runs/new/?preset=reverse-text-rl")
    Session.objects.all().delete()
    page.get_by_label("Batch size").fill("100")
    notice = page.get_by_role("alert").filter(has_text="Your session has ended")
    expect(notice.get_by_role("link", name="sign in")).to_have_attribute("target", "_blank")
    expect(page.get_by_label("User name")).to_have_count(0)
    page.context.add_cookies([session_cookie(operator, server.url)])
    page.context.add_cookies([{"name": "rollyard_csrf", "value": "n" * 32, "url": server.url}])  # as signing in does
    page.get_by_label("Seed").fill("1")
    expect(page.locator("#launch-summary")).to_contain_text("not a multiple")
    expect(notice).to_have_count(0)
    expect(page.get_by_label("Batch size")).to_have_value("100")
    assert not watched.was_reloaded


def test_enter_in_a_field_makes_no_model(watched: Watched) -> None:
    page = watched.open("/runs/new/?preset=reverse-text-rl")
    expect(page.get_by_role("button", name="Make reverse-text-warm")).to_be_visible()
    sent = watched.forms_sent()
    page.locator("#id-name").press("Enter")
    page.get_by_label("Batch size").fill("100")
    expect(page.locator("#launch-summary")).to_contain_text("not a multiple")
    assert set(sent) == {"/runs/new/check/"}
    assert not Run.objects.exists()


def test_a_model_that_is_missing_is_made_from_the_form_which_then_is_ready(watched: Watched) -> None:
    page = watched.open("/runs/new/?preset=reverse-text-rl")
    page.get_by_label("Batch size").fill("64")
    page.get_by_role("button", name="Make reverse-text-warm").click()
    expect(page.locator("#model-note")).to_contain_text("makes it: step 0 of 220")
    expect(page.locator("#launch-summary")).to_contain_text("1 thing to mend")
    maker = Run.objects.get()
    make_warm()  # as the reconciler does when the run has finished
    expect(page.locator("#launch-summary")).to_contain_text("Ready to launch")
    expect(page.locator("#model-note")).to_have_text("")
    page.get_by_role("button", name="Launch").click()
    expect(page.locator("#run-status")).to_contain_text("Waiting for the reconciler")
    run = Run.objects.exclude(pk=maker.pk).get()
    assert run.parsed.batch.batch_size == 64
    page.get_by_role("link", name="reverse-text-warm").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("reverse-text-warm")


def test_a_run_is_stopped_after_a_question_that_states_the_deadline(watched: Watched) -> None:
    run = make_run()
    page = watched.open(f"/runs/{run.key}/")
    page.get_by_role("button", name="Stop…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("within 30 s")
    expect(dialog).to_contain_text("so far")
    dialog.get_by_role("button", name="Keep running").click()
    expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Stop…").click()
    dialog.get_by_role("button", name="Stop the run").click()
    expect(page.locator("#run-status")).to_contain_text("Stopping: its processes are being ended")
    run.refresh_from_db()
    assert run.state == RunState.STOPPING


def test_searching_filters_the_list_and_the_back_button_returns(watched: Watched) -> None:
    for name in ("alpha", "beta"):
        make_run(name=name)
    page = watched.open("/")
    page.keyboard.press("/")
    page.keyboard.type("alp")
    expect(page.get_by_role("link", name="beta")).to_be_hidden()
    expect(page.get_by_role("link", name="alpha")).to_be_visible()
    expect(page).to_have_url(re.compile(r"\?q=alp"))
    page.get_by_role("link", name="alpha").click()
    expect(page.get_by_role("heading", name="alpha")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("alp")
    page.go_back()
    expect(page.get_by_role("link", name="beta")).to_be_visible()
    expect(page.get_by_role("searchbox")).to_have_value("")


def test_the_keyboard_walks_and_opens_rollouts(watched: Watched) -> None:
    run = make_run()
    group = make_group(run, rewards=[1.0, 0.0, 0.5])
    page = watched.open(f"/runs/{run.key}/rollouts/")
    for key in "jjjk":
        page.keyboard.press(key)
    marked = page.locator("[aria-current=true][data-keyboard-item]")
    expect(marked).to_have_id(f"rollout-{group.key}-1")
    page.emulate_media(forced_colors="active")
    for current in (marked, page.locator(".chips [aria-current]").first):
        expect(current).to_have_css("outline-style", "solid")
    page.emulate_media(forced_colors="none", media="print")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{watched.base_url}/runs/{run.key}/groups/{group.key}/#r1")
    expect(page.locator(".message pre").first).to_have_css("max-height", "none")
    page.emulate_media(media="screen")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_hidden()


def test_the_first_tab_stop_skips_to_the_content(watched: Watched) -> None:
    page = watched.open("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_the_theme_follows_the_system_until_one_is_chosen_and_stays_chosen(watched: Watched) -> None:
    make_lively_run(steps=3)
    watched.page.emulate_media(color_scheme="light")
    page = watched.open("/")
    light = background(page)
    page.emulate_media(color_scheme="dark")
    dark = background(page)
    assert light != dark
    toggle = page.get_by_role("button", name="Theme")
    toggle.click()
    assert background(page) == light
    toggle.click()
    page.emulate_media(color_scheme="light")
    assert background(page) == dark
    page.reload(wait_until="commit")
    page.wait_for_function("document.body && [...document.styleSheets].some((sheet) => sheet.cssRules.length)")
    assert background(page) == dark, "the stored theme is there before anything is painted"
    page.wait_for_load_state()
    toggle.click()
    assert background(page) == light


def test_a_click_on_a_step_of_a_chart_opens_its_batch(watched: Watched) -> None:
    run = make_lively_run(steps=3)
    make_batch(run, 1, [make_group(run)])
    page = watched.open(f"/runs/{run.key}/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/steps/" in request.url else None)
    reward = page.locator("metric-chart[title-text='Reward']")
    area = reward.locator(".u-over")
    box = area.bounding_box()
    assert box is not None
    area.dblclick(position={"x": box["width"] / 2, "y": box["height"] / 2})  # undoes a zoom, and opens nothing
    make_metrics(run, "reward/mean", [0.875], first_step=3)
    bell.ring_after_commit(run.pk)
    expect(reward).to_have_attribute("data-points", "4")
    area.click(position={"x": box["width"] / 3, "y": box["height"] / 2})
    expect(page.get_by_role("heading", name="Step 1")).to_be_visible()
    assert asked == [f"{watched.base_url}/runs/{run.key}/steps/1/"]


def test_a_point_of_several_steps_names_them(watched: Watched) -> None:
    run = make_run(next_step=900, max_steps=1000)
    make_metrics(run, "reward/mean", [0.25] * 899 + [0.75])
    page = watched.open(f"/runs/{run.key}/")
    reward = page.locator("metric-chart[title-text='Reward']")
    expect(reward).to_have_attribute("aria-label", re.compile("0.417 at step 897 to 899, mean"))
    expect(reward.locator(".chart-step")).to_have_text("step 897 to 899, mean")
    page.get_by_label("as tables").check()
    expect(reward.locator("td").first).to_have_text("897 to 899, mean")


def test_smoothing_is_remembered_and_redraws_the_charts(watched: Watched) -> None:
    run = make_lively_run(steps=10)
    page = watched.open(f"/runs/{run.key}/")
    expect(page.locator("metric-chart canvas").first).to_be_visible()
    page.get_by_label("Smoothing").select_option("0.9")
    page.reload()
    expect(page.get_by_label("Smoothing")).to_have_value("0.9")
    expect(page.locator("metric-chart canvas").first).to_be_visible()


def test_the_config_is_filtered_as_one_types(watched: Watched) -> None:
    page = watched.open(f"/runs/{make_run().key}/config/")
    page.get_by_role("searchbox").fill("optimizer.lr preset")
    expect(page.locator("[data-filter-row]:visible")).to_have_count(1)
    expect(page.locator("[data-filter-row]:visible")).to_contain_text("optimizer.lr")


@pytest.mark.parametrize("width", [1280, 390])
def test_tokens_wear_the_colour_of_what_is_chosen(watched: Watched, width: int) -> None:
    run, epoch = story.train()
    reasons = bytes([MaskReason.NOT_SAMPLED, MaskReason.ECHO, MaskReason.CLIPPED, MaskReason.TRAINED])
    story.see(run, epoch, mask_reasons=reasons, texts=["", "x" * 200, " quite", " right\n"])
    row = TokenValues.objects.select_related("rollout__group").order_by("pk").first()
    assert row is not None
    watched.page.set_viewport_size({"width": width, "height": 800})
    page = watched.open(f"/runs/{run.key}/groups/{row.rollout.group.key}/")
    page.get_by_role("link", name="tokens at step 0").first.click()
    page.get_by_role("link", name="Difference").click()
    token = page.locator(".seen-tokens span", has_text="right")
    expect(token).to_have_attribute("title", re.compile(r"trainer −0\.25, difference \+0\.25, ratio 1\.5"))
    expect(token).not_to_have_css("background-color", "rgba(0, 0, 0, 0)")
    background = token.evaluate("each => getComputedStyle(each).backgroundColor")
    page.emulate_media(forced_colors="active")
    expect(token).to_have_css("background-color", background)
    page.emulate_media(forced_colors="none")
    expect(page.locator(".seen-tokens .held", has_text="quite")).to_have_css("text-decoration-line", "underline")
    page.get_by_text("All figures").click()
    expect(page.get_by_role("row", name=re.compile("at a bound of the loss"))).to_be_visible()
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0, f"it is {overflow} px too wide"


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_scrolls_sideways(watched: Watched, width: int) -> None:
    run = make_lively_run(steps=3)
    group = make_group(run, prompt="x" * 500, completions=["y" * 2000, "z"])
    make_batch(run, 2, [group])
    broken = make_group(run, rewards=[None])
    with store.beyond_rights():
        group.rollouts.update(spans=[["model", 0.0, 300.0], ["tools", 300.0, 1.0]])
        broken.rollouts.update(error={"kind": "tool", "type": "E" * 200, "message": "m" * 2000, "stderr": "s" * 2000})
    watched.page.set_viewport_size({"width": width, "height": 800})
    labels.say(group, user=somebody(), actor="user:somebody", verdict="reject", tags=["t" * 40], note="n" * 2_000)
    acts.perform(run, Verb.EXCLUDE, [group.pk], user=somebody(), actor="user:somebody", note="n" * 2_000)
    paths = [
        "",
        "rollouts/",
        "events/",
        "config/",
        "people/",
        f"groups/{group.key}/",
        f"groups/{broken.key}/",
        "steps/2/",
    ]
    for path in [
        "/",
        "/runs/new/",
        "/runs/new/?preset=reverse-text-rl",
        "/environments/",
        "/environments/sql/",
        *(f"/runs/{run.key}/{part}" for part in paths),
    ]:
        page = watched.open(path)
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{path} is {overflow} px too wide"
    page = watched.open(f"/runs/{run.key}/")
    expect(page.locator(".chart-legend", has_text="none solved")).to_be_visible()
    cut = "all => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent)"
    assert page.locator(".chart-legend").evaluate_all(cut) == []
