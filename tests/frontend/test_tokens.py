"""The page of one rollout as the optimizer saw it: every token with its figures, coloured by one of them."""

import re
import struct
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from frontend.pages.tokens import coloured
from rollouts.models import Run, TokenValues
from rollouts.selectors import token_values
from tests.frontend.test_hostile_text import SCRIPT
from tests.rollouts import story
from trainers.wire import MaskReason


def train(**fields: Any) -> tuple[Run, TokenValues]:
    run, epoch = story.train()
    story.see(run, epoch, **fields)
    row = TokenValues.objects.select_related("rollout__group").order_by("pk").first()
    assert row is not None
    return run, row


def page(client: Client, run: Run, row: TokenValues, **query: Any) -> str:
    response = client.get(reverse("tokens", args=[run.key, row.pk]), query)
    assert response.status_code == 200
    return response.content.decode()


def test_every_token_of_the_completion_is_shown_with_its_figures_and_step(client: Client) -> None:
    run, row = train()
    shown = page(client, run, row)
    assert "What the optimizer saw at step 0, before it moved policy v0 to v1." in shown
    assert "engine −0.5, trainer −0.25, difference +0.25, ratio 1.5" in shown
    assert "token 3, id 68: trained on" in shown
    assert ">t2</span>" in shown
    assert ">t1</span>" not in shown, "a prompt is behind `from`"
    assert ">t1</span>" in page(client, run, row, **{"from": 0})


def test_the_group_and_the_step_lead_to_it(client: Client) -> None:
    run, row = train()
    address = reverse("tokens", args=[run.key, row.pk])
    group = client.get(reverse("group", args=[run.key, row.rollout.group.key])).content.decode()
    assert f'{address}">tokens at step 0</a>' in group
    assert address in client.get(reverse("step", args=[run.key, 0])).content.decode()
    assert reverse("group", args=[run.key, row.rollout.group.key]) in page(client, run, row)


def test_a_token_that_was_held_back_says_why_and_one_outside_of_the_loss_has_no_colour(client: Client) -> None:
    reasons = bytes([MaskReason.NOT_SAMPLED, MaskReason.ECHO, MaskReason.CLIPPED, MaskReason.DIVERGED])
    run, row = train(mask_reasons=reasons)
    shown = page(client, run, row, by="difference")
    assert "rollout dropped by max_divergence" in shown
    assert re.findall(r'<span class="(\w+) ([\w-]*)" title="token', shown) == [
        ("outside", ""),
        ("held", "up-4"),
        ("held", "up-4"),
    ]


@pytest.mark.parametrize(
    ("by", "tone", "ends"),
    [
        ("ratio", "up-4", "0.667 and 1.5"),
        ("difference", "up-4", "−0.25 and +0.25"),
        ("entropy", "up-4", "0.75"),
        ("logprob", "down-4", "−0.25"),
        ("nonsense", "up-4", "0.667 and 1.5"),
    ],
)
def test_tokens_are_coloured_by_what_is_chosen(client: Client, by: str, tone: str, ends: str) -> None:
    run, row = train()
    shown = page(client, run, row, by=by)
    assert f'"trained {tone}"' in shown
    assert f"full colour at {ends}" in shown


def test_a_token_that_became_impossible_is_of_the_strongest_colour(client: Client) -> None:
    run, row = train(ratios=struct.pack("<4f", 0.0, 0.0, 0.0, 1.0))
    shown = page(client, run, row, by="ratio")
    assert re.findall(r'<span class="trained ([\w-]*)" title="token', shown) == ["down-4", ""]
    assert "ratio 0," in shown


def test_an_outlier_does_not_take_the_colour_of_the_others() -> None:
    seen = token_values.get(*_long(tokens=300, outlier=1e6))
    tones = [token.tone for token in coloured.view(seen, "advantage").tokens]
    assert tones[0] == tones[1] == "up-4"


def test_a_long_rollout_comes_in_parts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coloured, "PAGE", 100)
    run, number = _long(tokens=300)
    row = TokenValues.objects.get(pk=number)
    shown = page(client, run, row)
    assert "?from=102" in shown
    assert shown.count('title="token ') == 100
    last = page(client, run, row, **{"from": 299})
    assert last.count('title="token ') == 1
    for odd in ("-1", "x", "9" * 30, "٣", ""):
        page(client, run, row, **{"from": odd})
    assert page(client, run, row, **{"from": 999_999}).count('title="token ') == 1


def test_texts_stay_text_and_tokens_without_one_show_their_id(client: Client) -> None:
    run, row = train(texts=["", "", SCRIPT, "a\u202e"])
    shown = page(client, run, row)
    assert "<script>alert" not in shown
    assert "&lt;script&gt;" in shown
    assert "U+202E" in shown
    TokenValues.objects.update(texts=None)
    assert "<small>67</small>" in page(client, run, row)


def test_the_page_brings_no_script_and_no_style_of_its_own(client: Client) -> None:
    run, row = train()
    shown = page(client, run, row)
    assert " style=" not in shown
    assert not re.search(r"<script(?! src=)|<style| on\w+=", shown)


def test_only_members_of_the_project_see_it(client: Client, viewer_client: Client, stranger_client: Client) -> None:
    run, row = train()
    address = reverse("tokens", args=[run.key, row.pk])
    assert viewer_client.get(address).status_code == 200
    assert stranger_client.get(address).status_code == 404
    assert Client().get(address).status_code == 302
    assert client.post(address).status_code == 405
    other, _ = story.train()
    assert client.get(reverse("tokens", args=[other.key, row.pk])).status_code == 404


def _long(*, tokens: int, outlier: float = 1.0) -> tuple[Run, int]:
    """A trained step whose first group is replaced by rollouts of so many tokens; the last token is the outlier."""
    run, epoch = story.train()
    claims = story.claim(run)
    for each in claims:
        played = [story.rollout(float(index % 2), tokens=tokens) for index in range(each.group_size)]
        story.settling.settle(token=each.token, problem_key="p", rollouts=played, worker="w")
    advantages = [0.0, 0.0] + [1.0] * (tokens - 3) + [outlier]
    story.see(run, epoch, advantages=struct.pack(f"<{tokens}f", *advantages))
    row = TokenValues.objects.order_by("pk").first()
    assert row is not None
    return run, row.pk
