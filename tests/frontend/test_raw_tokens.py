"""The tokens of a rollout as they were stored, also of a group that never was in a batch."""

import struct

import pytest
from django.test import Client
from django.urls import reverse

from frontend.pages.tokens.coloured import PAGE
from rollouts.models import GroupTokens, Rollout, Run, ScoredGroup
from tests import store
from tests.factories import make_group, make_run


def stored(run: Run, *, prompt: int = 2, sampled: int = 3, branches: list[int] | None = None) -> Rollout:
    """The second rollout of a group in no batch; its ids begin with 100."""
    group = make_group(run, rewards=[None, 1.0], key=f"group-{ScoredGroup.objects.count()}")
    total = prompt + sampled
    with store.beyond_rights():
        GroupTokens.objects.create(
            group=group,
            lengths=struct.pack("<2I", 0, total),
            token_ids=struct.pack(f"<{total}I", *range(100, 100 + total)),
            loss_mask=bytes([0] * prompt + [1] * sampled),
            inference_logprobs=struct.pack(f"<{total}f", *([0.0] * prompt), *([-0.5] * sampled)),
            branch_lengths=None if branches is None else struct.pack(f"<{len(branches)}I", *branches),
        )
    return group.rollouts.get(index=1)


def page(client: Client, run: Run, rollout: Rollout, **query: str) -> str:
    response = client.get(reverse("raw-tokens", args=[run.key, rollout.pk]), query)
    assert response.status_code == 200
    return response.content.decode()


def test_ids_are_shown_with_what_the_engine_said_of_those_it_sampled(client: Client) -> None:
    run = make_run()
    shown = page(client, run, stored(run))
    assert 'title="token 0, id 100: not sampled">100</span>' in shown
    assert 'title="token 4, id 104: sampled, logprob −0.5">104</span>' in shown
    assert "5 of 5" in shown


def test_the_page_of_the_group_leads_there_but_not_for_a_rollout_without_tokens(client: Client) -> None:
    run = make_run()
    rollout = stored(run)
    with store.beyond_rights():
        Rollout.objects.filter(group=rollout.group, index=0).update(token_count=0, trained_token_count=0)
    group = client.get(reverse("group", args=[run.key, rollout.group.key])).content.decode()
    assert group.count("raw tokens") == 1
    assert reverse("raw-tokens", args=[run.key, rollout.pk]) in group


def test_branches_are_marked_where_they_begin(client: Client) -> None:
    run = make_run()
    shown = page(client, run, stored(run, branches=[3, 2]))
    assert shown.index("branch 1 of 2") < shown.index(">102<") < shown.index("branch 2 of 2") < shown.index(">103<")


def test_a_long_rollout_is_paged(client: Client) -> None:
    run = make_run()
    rollout = stored(run, sampled=PAGE)
    first = page(client, run, rollout)
    assert "Later" in first
    assert "Earlier" not in first
    last = page(client, run, rollout, **{"from": str(PAGE)})
    assert f">{100 + PAGE}<" in last
    assert "Later" not in last


@pytest.mark.parametrize("begin", ["-1", "x", "9" * 17, ""])
def test_whatever_is_asked_for_there_is_a_page(client: Client, begin: str) -> None:
    run = make_run()
    page(client, run, stored(run), **{"from": begin})


def test_of_a_failed_rollout_that_sampled_nothing_the_page_is_empty(client: Client) -> None:
    run = make_run()
    failed = stored(run).group.rollouts.get(index=0)
    assert "0 of 0" in page(client, run, failed)


def test_a_viewer_sees_it_a_stranger_does_not_and_no_other_run_shows_it(
    client: Client, viewer_client: Client, stranger_client: Client
) -> None:
    run, other = make_run(), make_run()
    rollout = stored(run)
    path = reverse("raw-tokens", args=[run.key, rollout.pk])
    assert viewer_client.get(path).status_code == 200
    assert stranger_client.get(path).status_code == 404
    assert client.get(reverse("raw-tokens", args=[other.key, rollout.pk])).status_code == 404


def test_a_group_whose_tokens_are_nowhere_is_not_found(client: Client) -> None:
    run = make_run()
    rollout = make_group(run).rollouts.get(index=0)
    assert client.get(reverse("raw-tokens", args=[run.key, rollout.pk])).status_code == 404
