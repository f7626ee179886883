"""The pages of environments: what can be played, and where it was."""

import pytest
from django.test import Client
from django.urls import reverse

from environments import registry
from rollouts.models import EnvironmentSource, Run
from rollouts.states import GroupState
from tests import store
from tests.factories import make_group, make_project, make_run
from tests.rollouts import story

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
    assert "1 for the sum as the last number said after a call" in page
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


def test_a_page_tells_how_each_version_does_over_all_runs_that_play_it(client: Client) -> None:
    one, other = make_run(name="one"), make_run(name="other")
    for run, version in ((one, "1"), (other, "2"), (other, "2")):
        make_group(run, rewards=[0.0, 0.25, 1.0], environment_version=version)
    failed = make_group(other, rewards=[None, None], environment_version="2", state=GroupState.FAILED)
    make_group(make_run(name="hidden", project=make_project("others")), environment_version="3")
    answer = client.get(page_of("reverse_text"))
    found = answer.context["health"]
    assert {version.version: (version.groups, version.failed) for version in found.versions} == {
        "1": (1, 0),
        "2": (3, 1),
    }
    assert {each.version: each.rollouts for each in found.distributions} == {"1": 3, "2": 6}
    assert reverse("group", args=[other.key, failed.key]) in answer.content.decode()


def test_code_that_changed_without_its_version_is_marked_and_the_difference_is_shown(
    client: Client, stranger_client: Client
) -> None:
    make_group(make_run())
    states = [("1", "return 1\n"), ("1", "return <b>2</b>\n"), ("2", "return 3\n")]
    rows = [
        EnvironmentSource.objects.create(
            name="reverse_text", version=version, sha256=str(at) * 64, files={"a.py": text}
        )
        for at, (version, text) in enumerate(states)
    ]
    page = client.get(page_of("reverse_text")).content.decode()
    assert page.count("the version was not raised") == 1
    where = reverse("environment-difference", args=["reverse_text", rows[0].pk, rows[1].pk])
    assert where in page
    shown = client.get(where).content.decode()
    assert '<span class="removed">-return 1</span>' in shown
    assert "+return &lt;b&gt;2&lt;/b&gt;" in shown
    assert client.get(where.replace("reverse_text", "wordle")).status_code == 404
    assert stranger_client.get(where).status_code == 404


def test_the_difficulty_map_is_of_the_run_that_is_asked_for(client: Client) -> None:
    one, other = make_run(name="one"), make_run(name="other")
    for version, solved in ((0, 0), (1, 1), (2, 2)):
        rewards = [1.0] * solved + [0.0] * (2 - solved)
        make_group(one, version=version, problem_key="hard", rewards=rewards, scored_count=2, solved_count=solved)
    newest = client.get(page_of("reverse_text"))
    rows = {run.pk: run.environments.get() for run in (one, other)}
    assert f'href="{page_of("reverse_text")}?row={rows[one.pk].pk}#difficulty"' in newest.content.decode()
    assert newest.context["difficulty"] is None
    assert "No training group of it was scored yet" in newest.content.decode()
    answer = client.get(f"{page_of('reverse_text')}?row={rows[one.pk].pk}")
    found = answer.context["difficulty"]
    assert (found.first_version, found.last_version, found.none_solved, found.all_solved) == (0, 2, "0 %", "100 %")
    [problem] = found.problems
    assert [said for _, _, said in problem.cells] == [
        "v0: 0 of 2 solved",
        "v1: 1 of 2 solved",
        "v2: 2 of 2 solved",
    ]
    assert client.get(f"{page_of('reverse_text')}?row={rows[other.pk].pk}").context["difficulty"] is None
    hidden = make_run(project=make_project("others"))
    make_group(hidden)
    row = hidden.environments.get().pk
    assert client.get(f"{page_of('reverse_text')}?row={row}").context["difficulty"] is None


def test_of_a_run_that_plays_it_under_two_names_each_has_its_difficulty_map(client: Client) -> None:
    run = story.launch(environments=[{"name": "reverse_text", "label": label} for label in ("short", "long")])
    for row in run.environments.all():
        page = client.get(f"{page_of('reverse_text')}?row={row.pk}")
        assert page.context["difficulty_row"] == row
        assert f'?row={row.pk}#difficulty" aria-current="page">' in page.content.decode()
