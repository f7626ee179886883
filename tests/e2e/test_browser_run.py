"""A person launches a real run from the form, watches it learn, has an agent play it, and stops it. Real vLLM, torchrun
and Chromium, and the OpenAI SDK."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import expect

from environments.client import SessionClient
from tests.browser.watched import chromium, watch
from tests.e2e.yard import Yard, until

pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.browser]

SESSIONS = 8
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
            page.get_by_label("Batch size").fill("64")  # or steps would leave the agent behind
            page.get_by_label("Max steps").fill("2000")
            page.get_by_role("button", name="Launch").click()
            page.wait_for_url(re.compile(r"/runs/[a-z0-9]{10}/$"))
            run = page.url.rstrip("/").rsplit("/", 1)[-1]
            page.evaluate("window.notReloaded = true")

            chart = page.locator("metric-chart[title-text='Reward']")
            # The attribute is not there at all until the chart has drawn itself.
            expect(chart).to_have_attribute("data-points", re.compile(r"^[1-9]\d*$"), timeout=FIRST_POINT_MS)
            points = chart.get_attribute("data-points")
            expect(chart).not_to_have_attribute("data-points", points or "")
            expect(chart).to_have_attribute("aria-label", re.compile(r"Reward\. .* at step \d+"))

            rollouts = page.locator("[data-keyboard-item]")
            newest = rollouts.first.get_attribute("id")
            expect(rollouts.first).not_to_have_attribute("id", newest or "")
            assert not watched.was_reloaded

            _have_an_agent_play(yard, run)
            watched.open(f"/runs/{run}/connect/")
            expect(page.get_by_role("region", name="An agent")).to_contain_text(re.compile(r"In the run's groups\s*8"))
            watched.open(f"/runs/{run}/")
            page.get_by_role("button", name="Stop…").click()
            page.get_by_role("dialog").get_by_role("button", name="Stop the run").click()
            expect(page.locator("#run-status")).to_contain_text("stopped")
            assert yard.state(run) == "stopped"
            assert yard.victims("trainer") == []
            assert yard.victims("vllm") == []

            watched.open(f"/runs/{run}/steps/0/")
            page.get_by_role("link", name=re.compile(r"^rollout \d+ of ")).first.click()
            token = page.locator(".seen-tokens .trained, .seen-tokens .held").first
            expect(token).to_have_attribute("title", re.compile(r"engine −[\d.]+, trainer −[\d.]+, difference .*ratio"))
        context.close()


def _have_an_agent_play(yard: Yard, run: str) -> None:
    """A group of sessions from outside is trained on: what the engine sampled, with the agent's rewards."""
    token = yard.rollyard("token", "create", "agent", "--scope", "play")["token"]

    def play(number: int) -> bool:
        with client.open(environment="reverse_text", index=7, group="by-an-agent", group_size=SESSIONS) as session:
            agent = OpenAI(base_url=session.base_url, api_key=session.api_key)
            messages: Any = [{"role": each.role, "content": each.content} for each in session.problem.messages]
            answer = agent.chat.completions.create(model="policy", messages=messages, temperature=0)
            assert answer.choices[0].message.content is not None
            return session.finish(reward=float(number % 2))

    # One after the other they would be left behind by the steps of a machine on which each takes seconds.
    with SessionClient(yard.url, token, run) as client, ThreadPoolExecutor(SESSIONS) as agents:
        assert sorted(agents.map(play, range(SESSIONS))) == [False] * (SESSIONS - 1) + [True]
    query = "SELECT state FROM rollouts_scoredgroup WHERE key = 'by-an-agent'"
    until(lambda: yard.sql(query) == [("trained",)], within_s=90, what="the trainer to train on the agent's group")
    [(members, sampled, version)] = yard.sql(
        "SELECT count(*), min(trained_token_count), min(first_policy_version) FROM rollouts_rollout AS rollout"
        " JOIN rollouts_scoredgroup AS grp ON grp.id = rollout.group_id WHERE grp.key = 'by-an-agent'"
    )
    assert (members, sampled > 0, version >= 0) == (SESSIONS, True, True)
