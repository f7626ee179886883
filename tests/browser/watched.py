"""A page that may do no wrong: no console error, no failed request, no foreign host, no reload behind our back."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

from tests.patience import PATIENCE

_TIMEOUT_MS = PATIENCE * 30_000
"""A page waits longer between two looks when the last answer was slow."""
expect.set_options(timeout=_TIMEOUT_MS)

_HARMLESS_FAILURES = {"net::ERR_ABORTED"}
"""Requests that the browser itself gave up because the page moved on."""


_CHROMIUM_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_CHROMIUM_NAMES = ["chromium", "chromium-browser", "google-chrome"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The machine's Chromium; skips the test when there is none.

    Playwright's synchronous API keeps an event loop running in this thread, in which Django refuses the ORM unless
    told otherwise, and in which no other test could run a loop of its own: keep the block as short as the tests in it.
    """
    executable = next(filter(None, map(shutil.which, _CHROMIUM_NAMES)), None)
    if executable is None:
        pytest.skip("no Chromium on this machine")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=_CHROMIUM_ARGS)
            yield browser
            browser.close()
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@dataclass
class Watched:
    """A page with everything that went wrong on it."""

    page: Page
    base_url: str
    faults: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Go to a path of the control plane, and mark the document so that a reload can be told."""
        self.page.goto(f"{self.base_url}{path}")
        self.page.evaluate("window.notReloaded = true")
        return self.page

    def forms_sent(self) -> list[str]:
        """The paths that forms are sent to from now on, filled as they are."""
        sent: list[str] = []
        self.page.on("request", lambda each: sent.append(urlsplit(each.url).path) if each.method == "POST" else None)
        return sent

    @property
    def was_reloaded(self) -> bool:
        """Whether the document that `open` left is gone."""
        return not self.page.evaluate("window.notReloaded === true")


@contextmanager
def watch(context: BrowserContext, base_url: str) -> Iterator[Watched]:
    """A new page of a context; fails at the end with every fault it saw. `faults.clear()` forgives those so far."""
    page = context.new_page()
    page.set_default_timeout(_TIMEOUT_MS)
    watched = Watched(page, base_url)
    host = urlsplit(base_url).netloc

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            watched.faults.append(f"console: {message.text}")

    def on_request(request: Request) -> None:
        if urlsplit(request.url).netloc not in {host, ""}:
            watched.faults.append(f"foreign host: {request.url}")

    def on_failure(request: Request) -> None:
        if request.failure not in _HARMLESS_FAILURES:
            watched.faults.append(f"request failed: {request.url} {request.failure}")

    def on_response(response: Response) -> None:
        if response.status >= 400:
            watched.faults.append(f"answered {response.status}: {response.url}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: watched.faults.append(f"uncaught: {error}"))
    page.on("request", on_request)
    page.on("requestfailed", on_failure)
    page.on("response", on_response)
    page.on("websocket", lambda socket: _same_host(watched, socket.url, host))
    yield watched
    page.close()
    assert not watched.faults, "\n".join(watched.faults)


def _same_host(watched: Watched, url: str, host: str) -> None:
    if urlsplit(url).netloc != host:
        watched.faults.append(f"foreign socket: {url}")
