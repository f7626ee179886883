"""The pages of environments: what can be played, and where it was."""

import pytest
from django.test import Client
from django.urls import reverse

from environments import registry
from rollouts.models import Run
from tests import store
from tests.factories import make_project, make_run

pytestmark = pytest.mark.django_db
LIST = reverse("environments")


def page_of(name: str) -> str:
    return reverse("environment", args=[name])


def test_the_list_has_every_environment_with_what_it_is(client: Client) -> None:
    page = client.get(LIST).content.decode()
    for name in registry.names():
        assert f'href="{page_of(name)}"' in page
    assert "Write the given words backwards" in page
    assert "a bridge to another library" in page


def test_a_page_tells_the_task_the_reward_and_every_argument(client: Client) -> None:
    page = client.get(page_of("calculator")).content.decode()
    assert "1 for the sum after a call" in page
    assert "Calls of the tool that are answered, per episode." in page
    assert client.get(page_of("no_such")).status_code == 404


def test_a_page_lists_the_runs_that_play_it_under_whatever_name(client: Client) -> None:
    one, other = make_run(name="one"), make_run(name="other")
    config = one.config | {"environments": [{"name": "calculator", "label": "sums"}]}
    with store.beyond_rights():
        Run.objects.filter(pk=one.pk).update(config=config)
    page = client.get(page_of("calculator")).content.decode()
    assert reverse("run", args=[one.key]) in page
    assert reverse("run", args=[other.key]) not in page


def test_a_page_lists_no_run_of_a_project_that_the_user_does_not_see(viewer_client: Client) -> None:
    hidden = make_run(name="hidden", project=make_project("others"))
    page = viewer_client.get(page_of("reverse_text")).content.decode()
    assert reverse("run", args=[hidden.key]) not in page
    assert "None of yours so far." in page


def test_what_was_installed_is_shown_by_its_name_alone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "places", lambda: {"<b>theirs": "nowhere.at.all:Theirs"})
    page = client.get(LIST).content.decode()
    assert "&lt;b&gt;theirs" in page
    assert "was installed here" in page
    assert client.get(page_of("<b>theirs")).status_code == 200
