"""The page of somebody who is dismissed stops following, says so, and asks for nothing any more."""

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from rollouts.models import Membership
from tests.browser.watched import Watched
from tests.factories import make_lively_run
from tests.lanes import IS_LONG

pytestmark = [pytest.mark.browser, pytest.mark.slow]

QUIET_MS = 25_000
"""More than two polls, or the longest wait between two attempts to connect."""


def close_account(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def end_membership(user: User) -> None:
    Membership.objects.filter(user=user).delete()


SOCKETS = ["open", "blocked"]
ACTS = [(close_account, "Your session has ended"), (end_membership, "You may not see this run any more")]
PAIRS = [(*act, sockets) for sockets in SOCKETS for act in ACTS]


# Each waits for half a minute in which nothing may happen: of four the long lane tries all.
@pytest.mark.parametrize(("dismiss", "words", "sockets"), PAIRS if IS_LONG else [PAIRS[2]])
def test_a_live_page_stops_and_says_so(
    watched: Watched, operator: User, dismiss: Callable[[User], None], words: str, sockets: str
) -> None:
    run = make_lively_run(steps=5)
    page = watched.page
    if sockets == "blocked":
        page.route_web_socket(re.compile("/ws/"), lambda socket: socket.close(code=1013))
    watched.open(f"/runs/{run.key}/")
    status = page.locator("live-status")
    expect(status).to_have_attribute("data-state", "live" if sockets == "open" else "disconnected")
    expect(page.locator("metric-chart").first).to_have_attribute("data-points", "5")
    page.wait_for_load_state("networkidle")  # what was asked for before is answered
    dismiss(operator)
    expect(page.get_by_text(words)).to_be_visible()
    page.wait_for_load_state("networkidle")  # the sign-in page has its own mark to fetch
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("websocket", lambda socket: asked.append(socket.url))
    page.wait_for_timeout(QUIET_MS)
    assert asked == [], "nothing is asked for, and nothing connects again"
    # What `watched` saw go wrong, on the console too, fails the test when it ends.
