"""A browser on the real control plane. Fixtures create rows directly; the bell they ring is the real one."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext

from tests.browser.server import Server, collect_static
from tests.browser.watched import Watched, watch
from tests.factories import make_user

CHROMIUM_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session", autouse=True)
def _allow_orm_beside_playwright() -> Iterator[None]:
    """Playwright's synchronous API runs an event loop, in which Django refuses the ORM unless told otherwise."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    yield
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """The distribution's Chromium where there is one, else Playwright's own."""
    found = {"executable_path": path} if (path := shutil.which("chromium")) else {}
    return {**browser_type_launch_args, **found, "args": CHROMIUM_ARGS}


@pytest.fixture(scope="session")
def _server(django_db_setup: None, django_db_blocker: Any) -> Iterator[Server]:
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
def watched(signed_in_context: BrowserContext, server: Server) -> Iterator[Watched]:
    """A signed-in page whose every fault fails the test."""
    with watch(signed_in_context, server.url) as page:
        yield page


@pytest.fixture
def another_page(signed_in_context: BrowserContext, server: Server) -> Callable[[], Any]:
    """Opens further tabs of the same person."""
    return lambda: watch(signed_in_context, server.url)


def session_cookie(user: User, url: str) -> Any:
    """The cookie of a session, as signing in would leave it."""
    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    return {"name": name, "value": client.cookies[name].value, "url": url}
