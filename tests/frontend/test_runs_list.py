"""The list of runs: its filters are in the query string, its pages are keyset pages, it says what to do when empty."""

from django.contrib.auth.models import User
from django.test import Client

from rollouts.states import RunState
from tests.factories import make_lively_run, make_metrics, make_run


def names(client: Client, **query: str) -> list[str]:
    page = client.get("/", query)
    assert page.status_code == 200
    return [row.run.name for row in page.context["found"].rows]


def test_an_empty_list_says_how_to_launch(client: Client) -> None:
    page = client.get("/").content.decode()
    assert "No runs yet" in page
    assert "Launch the first run" in page


def test_an_empty_list_tells_a_viewer_what_they_lack(viewer_client: Client) -> None:
    page = viewer_client.get("/").content.decode()
    assert "needs the operator role" in page
    assert "Launch the first run" not in page


def test_a_row_shows_state_progress_reward_and_person(client: Client, operator: User) -> None:
    make_lively_run(steps=20, name="lively", user=operator)
    page = client.get("/").content.decode()
    for text in ("lively", "running", "<b>20</b> / 80", "min", "reverse_text", "reverse-text-warm", "ada"):
        assert text in page
    assert 'aria-label="Reward from' in page


def test_the_reward_of_a_long_run_is_that_of_its_newest_step(client: Client) -> None:
    make_metrics(make_run(), "reward/mean", [0.25] * 899 + [0.75])
    assert '<span class="num">0.75</span>' in client.get("/").content.decode()


def test_newest_runs_come_first(client: Client) -> None:
    for name in ("first", "second", "third"):
        make_run(name=name)
    assert names(client) == ["third", "second", "first"]


def test_the_state_filter_keeps_runs_in_that_state(client: Client) -> None:
    make_run(name="goes-on")
    make_run(name="ended", state=RunState.FINISHED)
    make_run(name="broken", state=RunState.FAILED)
    assert names(client, state="active") == ["goes-on"]
    assert names(client, state="failed") == ["broken"]
    assert client.get("/").context["found"].counts == {"": 3, "active": 1, "finished": 1, "stopped": 0, "failed": 1}


def test_every_word_of_the_search_must_match_something(client: Client, operator: User) -> None:
    make_run(name="alpha", user=operator)
    make_run(name="beta")
    assert names(client, q="alpha") == ["alpha"]
    assert names(client, q="reverse_text ada") == ["alpha"]
    assert names(client, q="alpha nowhere") == []
    assert set(names(client, q="text-warm")) == {"alpha", "beta"}


def test_a_search_without_a_match_offers_the_way_back(client: Client) -> None:
    make_run()
    page = client.get("/", {"q": "nowhere"}).content.decode()
    assert "No run matches" in page
    assert "Show all runs" in page


def test_older_runs_are_on_the_next_page(client: Client) -> None:
    for number in range(52):
        make_run(name=f"run-{number}")
    first = client.get("/")
    older = first.context["found"].older
    assert len(first.context["found"].rows) == 50
    assert names(client, before=str(older)) == ["run-1", "run-0"]
    follows = [b'hx-trigger="run:changed' in page.content for page in (first, client.get("/", {"before": older}))]
    assert follows == [True, False], "older pages stand still"


def test_htmx_gets_the_list_and_its_filters_alone(client: Client) -> None:
    make_run(name="alpha")
    part = client.get("/", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in part
    assert 'id="run-list"' in part
    assert 'id="run-filters"' in part
    assert "hx-swap-oob" in part
