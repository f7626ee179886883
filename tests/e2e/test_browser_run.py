"""A person launches a real run from the form, watches it learn, and stops it. Real vLLM, torchrun and Chromium."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.watched import chromium, watch
from tests.e2e.yard import Yard

pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.browser, pytest.mark.timeout(900)]

FIRST_POINT_MS = 240_000
"""vLLM and torchrun start within a minute on two idle cores."""


def test_a_run_is_launched_watched_and_stopped_in_the_browser(yard: Yard, base: Path) -> None:
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=yard.url)
        with watch(context, yard.url) as watched:
            page = watched.page
            page.goto(yard.login_url)
            watched.open("/runs/new/?preset=reverse-text-rl")
            page.locator("input[name='model.path']").fill(str(base))
            page.get_by_label("Batch size").fill("64")
            page.get_by_label("Max steps").fill("2000")
            page.get_by_role("button", name="Launch").click()
            page.wait_for_url(re.compile(r"/runs/[a-z0-9]{10}/$"))
            run = page.url.rstrip("/").rsplit("/", 1)[-1]
            page.evaluate("window.notReloaded = true")

            chart = page.locator("metric-chart[title-text='Reward']")
            # The attribute is not there at all until the chart has drawn itself.
            expect(chart).to_have_attribute("data-points", re.compile(r"^[1-9]\d*$"), timeout=FIRST_POINT_MS)
            points = chart.get_attribute("data-points")
            expect(chart).not_to_have_attribute("data-points", points or "", timeout=60_000)
            expect(chart).to_have_attribute("aria-label", re.compile(r"Reward\. .* at step \d+"))

            rollouts = page.locator("[data-keyboard-item]")
            newest = rollouts.first.get_attribute("id")
            expect(rollouts.first).not_to_have_attribute("id", newest or "", timeout=60_000)
            assert not watched.was_reloaded

            page.get_by_role("button", name="Stop…").click()
            page.get_by_role("dialog").get_by_role("button", name="Stop the run").click()
            expect(page.locator("#run-status")).to_contain_text("stopped", timeout=60_000)
            assert yard.state(run) == "stopped"
            assert yard.victims("trainer") == []
            assert yard.victims("vllm") == []

            watched.open(f"/runs/{run}/steps/0/")
            page.get_by_role("link", name=re.compile(r"^rollout \d+ of ")).first.click()
            token = page.locator(".seen-tokens .trained, .seen-tokens .held").first
            expect(token).to_have_attribute("title", re.compile(r"engine −[\d.]+, trainer −[\d.]+, difference .*ratio"))
        context.close()
