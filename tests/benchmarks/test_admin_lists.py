"""What the lists of the administration site are measured on has something to find."""

import json

import pytest

from benchmarks import admin_lists, large_store
from rollouts.models import BatchItem

pytestmark = pytest.mark.django_db
GROUPS = 90


def test_filters_find_what_they_are_there_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(large_store, "analyze", lambda: None)
    admin_lists.fill(GROUPS, rejected=GROUPS // 2)
    assert BatchItem.objects.count() == GROUPS / 3
    named = {"state__exact", "withheld__exact", "purpose__exact", "lag"}
    asked = [page for page in admin_lists.pages() if named & page[1].keys()]
    for who, client in admin_lists.clients():
        for page in asked:
            admin_lists.ask(who, client, page)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(told) == 2 * len(asked)
    assert [line for line in told if not line["rows"]] == []


def test_a_page_that_does_not_answer_ends_the_measurement() -> None:
    _, (_, client) = admin_lists.clients()
    client.logout()
    with pytest.raises(SystemExit, match="answers nobody with 302"):
        admin_lists.ask("nobody", client, ("scoredgroup", {}))
