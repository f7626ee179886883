"""A browser on the real control plane. Fixtures create rows directly; the bell they ring is the real one."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext

from tests.browser.server import Server, collect_static
from tests.browser.watched import Watched, chromium, watch
from tests.factories import make_user

SCREENSHOTS = Path("test-results")
_REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The machine's Chromium, for the tests of this directory alone: see `chromium`."""
    with chromium() as browser:
        yield browser


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Let fixtures see whether their test failed."""
    report = yield
    if report.when == "call":
        item.stash[_REPORT] = report
    return report


@pytest.fixture(scope="package")
def _server(browser: Browser, django_db_setup: None, django_db_blocker: Any) -> Iterator[Server]:
    with django_db_blocker.unblock():
        collect_static()
        server = Server()
        server.start()
    yield server
    server.stop()


@pytest.fixture
def server(_server: Server, transactional_db: None) -> Server:
    """The control plane, over the tables of this test."""
    return _server


@pytest.fixture
def operator(transactional_db: None) -> User:
    return make_user("ada")


@pytest.fixture
def signed_in_context(browser: Browser, server: Server, operator: User) -> Iterator[BrowserContext]:
    """A browser profile of a 1280-pixel laptop with the operator's session."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, base_url=server.url)
    context.add_cookies([session_cookie(operator, server.url)])
    yield context
    context.close()


@pytest.fixture
def watched(signed_in_context: BrowserContext, server: Server, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A signed-in page whose every fault fails the test. Of a failed test a screenshot is kept in `test-results/`."""
    with watch(signed_in_context, server.url) as watched:
        yield watched
        report = request.node.stash.get(_REPORT, None)
        if report is not None and report.failed:
            watched.page.screenshot(path=SCREENSHOTS / f"{request.node.name}.png", full_page=True)


def session_cookie(user: User, url: str) -> Any:
    """The cookie of a session, as signing in would leave it."""
    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    return {"name": name, "value": client.cookies[name].value, "url": url}
