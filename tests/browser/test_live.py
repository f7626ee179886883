"""Pages follow the run: no reload, nothing lost when the socket is, and the live dot says what is true."""

import re
from typing import Literal

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Locator, Page, Route, WebSocket, WebSocketRoute, expect

from rollouts import bell
from rollouts.models import Run
from rollouts.services.groups import loads
from rollouts.services.runs import life, trials
from rollouts.states import RunState
from tests import store
from tests.browser.server import Server
from tests.browser.watched import Watched
from tests.factories import make_evaluation, make_group, make_lively_run, make_metrics, make_replica, make_run
from tests.lanes import themes

pytestmark = pytest.mark.browser


def chart(page: Page, title: str) -> Locator:
    return page.locator(f"metric-chart[title-text='{title}']")


def add_point(run: Run, key: str, step: int, value: float) -> None:
    make_metrics(run, key, [value], first_step=step)
    bell.ring_after_commit(run.pk)


def test_a_chart_grows_while_one_looks_at_it(watched: Watched) -> None:
    run = make_lively_run(steps=5)
    page = watched.open(f"/runs/{run.key}/")
    reward = chart(page, "Reward")
    expect(reward).to_have_attribute("aria-label", re.compile("at step 4"))
    expect(page.locator("live-status")).to_have_attribute("data-state", "live")
    add_point(run, "reward/mean", 5, 0.875)
    expect(reward).to_have_attribute("aria-label", re.compile("trained: 0.875 at step 5"))
    expect(reward).to_have_attribute("data-points", "6")
    assert not watched.was_reloaded


@pytest.mark.parametrize("theme", themes("light"))
def test_what_is_in_flight_and_why_an_environment_fails_is_followed_to_the_episode(
    watched: Watched, theme: Literal["light", "dark"]
) -> None:
    run = make_run()
    watched.page.emulate_media(color_scheme=theme)
    page = watched.open(f"/runs/{run.key}/")
    expect(page.locator("#run-in-flight")).to_contain_text("no driver has reported")
    expect(page.locator("live-status")).to_have_attribute("data-state", "live")
    group = make_group(run, rewards=[1.0, None])
    with store.beyond_rights():
        group.rollouts.update(spans=[["model", 0.0, 3.0], ["tools", 3.0, 1.0], ["scoring", 4.0, 0.5]])
    loads.report(run, holder="a", sessions=1280, queued=0, asking=820, scoring=32, tokens=1_400_000)
    bell.ring_after_commit(run.pk)
    expect(page.locator("#run-in-flight")).to_contain_text("1,400,000 of 2,000,000")
    page.locator("#run-environments").get_by_role("link", name="ReadTimeout").click()
    member = page.get_by_role("article", name="Member 1")
    expect(member.get_by_role("row", name="policy 3.0 s 67 %")).to_be_visible()
    colours = member.locator(".lane rect").evaluate_all("bars => bars.map((bar) => getComputedStyle(bar).fill)")
    assert len(set(colours)) == 3, colours


def test_a_chart_without_points_says_what_it_waits_for_and_then_draws(watched: Watched) -> None:
    run = make_run()
    page = watched.open(f"/runs/{run.key}/")
    expect(chart(page, "Reward").get_by_text("No points yet")).to_be_visible()
    expect(page.locator("live-status")).to_have_attribute("data-state", "live")
    add_point(run, "reward/mean", 0, 0.5)
    expect(chart(page, "Reward").locator("canvas")).to_be_visible()
    expect(chart(page, "Reward").get_by_text("No points yet")).to_be_hidden()


def test_rollouts_arrive_without_a_reload_and_the_marked_one_stays_marked(watched: Watched) -> None:
    run = make_run()
    first = make_group(run, prompt="Reverse: lantern", rewards=[1.0, 0.0])
    page = watched.open(f"/runs/{run.key}/rollouts/")
    expect(page.locator("live-status")).to_have_attribute("data-state", "live")
    page.keyboard.press("j")
    page.keyboard.press("j")
    marked = page.locator("[data-keyboard-item][aria-current]")
    expect(marked).to_have_attribute("id", f"rollout-{first.key}-1")
    make_group(run, prompt="Reverse: copper", rewards=[1.0, 0.0])
    bell.ring_after_commit(run.pk)
    expect(page.get_by_text("Reverse: copper")).to_be_visible()
    expect(marked).to_have_attribute("id", f"rollout-{first.key}-1")
    expect(marked).to_have_count(1)
    assert not watched.was_reloaded


def test_a_change_of_state_reaches_the_page_and_the_list(watched: Watched) -> None:
    run = make_run(name="followed")
    page = watched.open("/")
    expect(page.locator("live-status")).to_have_attribute("data-state", "live")
    expect(page.get_by_role("row", name="followed")).to_contain_text("running")
    life.request_stop(run, actor="user:ada")
    expect(page.get_by_role("row", name="followed")).to_contain_text("stopping")
    life.end(run, to=RunState.STOPPED)
    expect(page.get_by_role("row", name="followed")).to_contain_text("stopped")
    assert not watched.was_reloaded


def test_a_run_that_ends_while_it_is_watched_offers_no_stop_any_more(watched: Watched) -> None:
    run = make_run()
    page = watched.open(f"/runs/{run.key}/")
    expect(page.locator("live-status")).to_have_attribute("data-state", "live")
    expect(page.get_by_role("button", name="Stop…")).to_be_visible()
    life.request_stop(run, actor="user:ada")
    expect(page.get_by_role("button", name="Stop…")).to_have_count(0)
    life.end(run, to=RunState.STOPPED)
    expect(page.locator("#run-status")).to_contain_text("Stopped")
    expect(page.get_by_role("link", name="Clone")).to_be_visible()
    assert not watched.was_reloaded


def test_a_launched_run_appears_in_an_open_list(watched: Watched) -> None:
    make_run(name="earlier")
    page = watched.open("/")
    expect(page.locator("live-status")).to_have_attribute("data-state", "live")
    run = make_run(name="newcomer")
    bell.ring_after_commit(run.pk)
    expect(page.get_by_role("link", name="newcomer")).to_be_visible()
    expect(page.locator("#run-filters")).to_contain_text("All2")


def test_a_search_on_an_older_page_of_the_list_leaves_it_and_is_followed(watched: Watched) -> None:
    runs = [make_run(name=name) for name in ("alpha", "beta", "gamma")]
    page = watched.open(f"/?before={runs[2].pk}")
    expect(page.get_by_role("link", name="gamma")).to_be_hidden()
    expect(page.locator("live-status")).to_be_hidden()
    page.get_by_role("searchbox").fill("a")
    expect(page.get_by_role("link", name="gamma")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/\?q=a$"))
    expect(page.locator("live-status")).to_be_visible()
    bell.ring_after_commit(make_run(name="delta").pk)
    expect(page.get_by_role("link", name="delta")).to_be_visible()
    assert not watched.was_reloaded


def test_what_the_list_asked_for_before_a_search_does_not_undo_it(watched: Watched) -> None:
    for name in ("alpha", "beta"):
        make_run(name=name)
    page = watched.open("/")
    held: list[Route] = []
    asked: list[str] = []
    given_up: list[str] = []
    page.route(re.compile(r"/(\?q=alph)?$"), lambda route: held.append(route))
    page.on("requestfailed", lambda request: given_up.append(request.url))
    changed = "document.body.dispatchEvent(new CustomEvent('run:changed'))"
    with page.expect_request(re.compile("/$")):
        page.evaluate(changed)
    page.keyboard.press("/")
    page.keyboard.type("alp")
    expect(page.get_by_role("link", name="beta")).to_be_hidden()
    assert given_up == [f"{watched.base_url}/"]
    watched.faults.clear()  # htmx calls it an error
    page.on("request", lambda request: request.resource_type == "xhr" and asked.append(request.url))
    with page.expect_request(re.compile("q=alph$")):
        page.keyboard.type("h")
    page.evaluate(changed)
    with page.expect_request(re.compile("q=alph$")):
        held.pop().continue_()
    assert set(asked) == {f"{watched.base_url}/?q=alph"}, "what changed meanwhile is asked for with the new words"
    page.unroute_all(behavior="ignoreErrors")


def test_a_page_whose_refetches_fail_says_so_until_one_is_answered(watched: Watched) -> None:
    run = make_run()
    page = watched.open(f"/runs/{run.key}/rollouts/")
    status = page.locator("live-status")
    expect(status).to_have_attribute("data-state", "live")
    page.route(re.compile("/live/"), lambda route: route.fulfill(status=503))
    make_group(run, prompt="Reverse: marble")
    bell.ring_after_commit(run.pk)
    expect(status).to_have_text(re.compile(r"Disconnected since \d\d:\d\d:\d\d UTC"))
    expect(status.get_by_role("button")).to_have_attribute("title", re.compile("The server answered 503"))
    page.unroute_all()
    bell.ring_after_commit(run.pk)
    expect(page.get_by_text("Reverse: marble")).to_be_visible()
    expect(status).to_have_attribute("data-state", "live")
    assert not watched.was_reloaded
    watched.faults.clear()  # what was answered 503


def test_pausing_keeps_the_page_still_and_resuming_catches_up(watched: Watched) -> None:
    run = make_run()
    page = watched.open(f"/runs/{run.key}/rollouts/")
    status = page.locator("live-status")
    expect(status).to_have_attribute("data-state", "live")
    status.get_by_role("button").click()
    expect(status).to_have_text("Paused")
    make_group(run, prompt="Reverse: quartz")
    bell.ring_after_commit(run.pk)
    with watched.page.expect_response(re.compile("/live/")):
        status.get_by_role("button").click()
    expect(page.get_by_text("Reverse: quartz")).to_be_visible()
    expect(status).to_have_text("Live")


def test_after_a_restart_of_the_server_the_page_catches_up_by_itself(watched: Watched, server: Server) -> None:
    run = make_lively_run(steps=5)
    page = watched.open(f"/runs/{run.key}/")
    status = page.locator("live-status")
    expect(status).to_have_attribute("data-state", "live")
    server.stop()
    try:
        expect(status).to_have_text(re.compile(r"Disconnected since \d\d:\d\d:\d\d UTC"))
        make_metrics(run, "reward/mean", [0.875], first_step=5)
    finally:
        server.start()
    expect(status).to_have_attribute("data-state", "live")
    expect(chart(page, "Reward")).to_have_attribute("aria-label", re.compile("0.875 at step 5"))
    assert not watched.was_reloaded
    watched.faults.clear()  # connections refused while the server was down


def test_what_a_person_ticked_stays_ticked_as_evaluations_are_measured(watched: Watched) -> None:
    run = make_run(overrides={"evaluation.rollouts_per_problem": 2})
    ticked = make_evaluation(run, 5, 0.5)
    page = watched.open(f"/evaluations/{run.key}/")
    expect(page.locator("live-status")).to_have_attribute("data-state", "live")
    page.get_by_label(f"Compare evaluation {ticked.pk}").check()
    before = make_evaluation(run, 0, 0.25)
    bell.ring_after_commit(run.pk)
    expect(page.get_by_label(f"Compare evaluation {before.pk}")).not_to_be_checked()
    expect(page.get_by_label(f"Compare evaluation {ticked.pk}")).to_be_checked()
    assert not watched.was_reloaded


def test_what_a_person_opened_of_a_trial_stays_open_as_it_goes_on(watched: Watched) -> None:
    run = make_run()
    make_replica(run)
    page = watched.open("/environments/wordle/")
    page.get_by_role("button", name="Play it").click()
    expect(page.get_by_text("Waits for a driver")).to_be_visible()
    [claimed] = trials.claim(run, holder="a:1", limit=1)
    said = [{"role": "assistant", "reasoning_content": "It may be crane.", "content": "crane"}]
    trials.tell(claimed, {"messages": said})
    expect(page.locator("live-status")).to_have_attribute("data-state", "live")
    bell.ring_after_commit(run.pk)
    page.get_by_text("Reasoning").click()
    trials.tell(claimed, {"messages": [*said, {"role": "user", "content": "no, go on"}]})
    bell.ring_after_commit(run.pk)
    expect(page.get_by_text("no, go on")).to_be_visible()
    expect(page.get_by_text("It may be crane.")).to_be_visible()


BACK_AT_ONCE = """
let isBack = false;
document.addEventListener("live:state", ({ detail }) => {
  if (detail.state === "disconnected" && !isBack) {
    isBack = true;
    setTimeout(() => window.dispatchEvent(new Event("online")));
  }
});
"""
"""The network is there again before the page tries by itself."""


def test_a_page_that_connects_at_once_when_the_network_is_back_does_not_do_so_again_later(watched: Watched) -> None:
    run = make_run()
    page = watched.page
    sockets: list[WebSocketRoute] = []

    def connect(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        if len(sockets) == 1:
            refuse(socket)
        else:
            socket.connect_to_server()

    page.route_web_socket(re.compile("/ws/"), connect)
    page.clock.install()
    page.add_init_script(BACK_AT_ONCE)
    watched.open(f"/runs/{run.key}/rollouts/")
    expect(page.locator("live-status")).to_have_attribute("data-state", "live")
    page.clock.fast_forward(1_000)
    make_group(run, prompt="Reverse: pebble")
    bell.ring_after_commit(run.pk)
    expect(page.get_by_text("Reverse: pebble")).to_be_visible()
    assert len(sockets) == 2


SOCKETS = """
window.sockets = [];
window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    sockets.push(this);
  }
};
"""
"""The sockets of the page, in the order in which it opened them."""


def test_a_page_that_asks_for_nothing_does_not_try_to_connect_for_ever_when_its_session_is_over(
    watched: Watched,
) -> None:
    """Each try is held against the address, of which others come too."""
    page = watched.page
    page.add_init_script(SOCKETS)
    opened: list[WebSocket] = []
    page.on("websocket", lambda socket: opened.append(socket))
    watched.open(f"/runs/{make_run().key}/rollouts/")
    status = page.locator("live-status")
    expect(status).to_have_attribute("data-state", "live")
    status.get_by_role("button").click()
    expect(status).to_have_text("Paused")
    Session.objects.all().delete()
    with page.expect_websocket() as again:
        page.evaluate("sockets[0].close()")
    if not again.value.is_closed():
        again.value.wait_for_event("close")
    page.evaluate("window.dispatchEvent(new Event('online'))")
    page.wait_for_timeout(3_000)  # more than the next two tries would take
    assert len(opened) == 2


@pytest.mark.slow
def test_with_sockets_blocked_polling_shows_the_same(watched: Watched) -> None:
    run = make_run()
    page = watched.page
    page.route_web_socket(re.compile("/ws/"), lambda socket: refuse(socket))
    watched.open(f"/runs/{run.key}/rollouts/")
    expect(page.locator("live-status")).to_have_attribute("data-state", "disconnected")
    make_group(run, prompt="Reverse: harbor")
    expect(page.get_by_text("Reverse: harbor")).to_be_visible(timeout=60_000)


def refuse(socket: WebSocketRoute) -> None:
    socket.close(code=1013)
