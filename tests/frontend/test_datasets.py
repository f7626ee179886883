"""Datasets are made and looked at on pages: versions with their members, what they have, and how two differ."""

import html
import re
import shlex
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from frontend.pages.launch.draft import as_posted
from rollouts.models import BatchItem, DatasetVersion, Role, Run, ScoredGroup
from rollouts.services.curation import filling, queues
from rollouts.services.datasets import counting
from tests import store
from tests.factories import make_batch, make_project, make_user
from tests.frontend.test_hostile_text import SCRIPT
from tests.frontend.test_queues import read, send, signed_in
from tests.model_files import make_model, whole_model
from tests.rollouts import story
from tests.rollouts.datasets.test_counting import LONG, evaluate
from tests.rollouts.datasets.test_importing import read as read_rows
from tests.rollouts.datasets.test_importing import told
from tests.rollouts.datasets.test_making import correct, make, played, say
from trainers.config import resolve

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [played("a", [0.5, 1.0]), played("b", [0.0, 0.25])], actor="api:t")
    return run


@pytest.fixture
def curator() -> Client:
    return signed_in(Role.CURATOR)


def looked_at(client: Client, version: DatasetVersion, **query: Any) -> str:
    address = reverse("dataset-version", args=[version.dataset.key, version.version])
    return html.unescape(client.get(address, query).content.decode())


def test_a_version_is_made_from_a_form_that_a_link_fills_in(curator: Client, run: Run) -> None:
    address = f"{reverse('datasets')}?runs={run.key}&project={run.project.slug}&accepted=on"
    assert html.escape(f"{address}#make") in html.escape(read(curator, "run-people", run.key))
    page = curator.get(address).content.decode()
    assert f'value="{run.key}"' in page
    assert page.count(" checked") == 1
    say("a", rollout=1)
    form = {"name": "good", "project": run.project.slug, "runs": run.key, "form": "examples", "note": "first"}
    page = send(curator, "dataset-make", **form, accepted="on", validation_share="0.2", licence="CC0")
    assert "good@1 was made: 1 members" in page
    assert "being counted" in page
    version = DatasetVersion.objects.get()
    assert (version.actor, version.note, version.dataset.licence) == ("user:the-curator", "first", "CC0")
    assert "good" in read(curator, "datasets")
    assert "1 run" in read(curator, "dataset", version.dataset.key)


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"name": "No Name"}, "must have 1 to 64 lower-case letters"),
        ({"best": "some"}, "must be a whole number"),
        ({"best": "0"}, "must fit: Expected `int` >= 1"),
        ({"min_reward": "high"}, "must be a number"),
        ({"min_reward": "nan"}, "must be a number of at most 1,000,000,000"),
        ({"runs": ""}, "exactly one of them"),
        ({"queue": "q"}, "exactly one of them"),
        ({"states": "rejected"}, "must be of"),
        ({"min_reward": "3"}, "4 have a lower reward"),
    ],
)
def test_what_is_no_recipe_is_refused_with_what_was_typed(
    curator: Client, run: Run, form: dict[str, str], why: str
) -> None:
    given = {"name": "good", "project": run.project.slug, "runs": run.key, "note": "what I typed"} | form
    page = send(curator, "dataset-make", status=422, **given)
    assert why in page
    assert 'value="what I typed"' in page
    assert not DatasetVersion.objects.exists()


def test_a_version_says_what_it_has(curator: Client, run: Run) -> None:
    evaluate(story.launch(), ["a"])
    say("a", tags=["good"])
    correct("b", 0, answer="what a person wrote")
    make_batch(run, 0, [ScoredGroup.objects.get(key="a")])
    version = make(run, unwanted_below=0.3)
    counting.count(version.pk)
    page = looked_at(curator, version)
    assert "whatever learns from this version is not measured by them" in page
    assert "what a person wrote" in page
    assert "What was corrected" in page
    assert ">human<" in page
    assert page.count(">to be avoided<") == 1
    assert reverse("step", args=[run.key, 0]) in page
    assert f"{reverse('group', args=[run.key, 'a'])}#r1" in page
    assert "<h3>Tags</h3>" in page


def test_a_member_has_the_reward_that_people_gave_and_the_step_of_its_own_run(curator: Client, run: Run) -> None:
    group = ScoredGroup.objects.get(key="a")
    make_batch(run, 0, [group])
    replay = make_batch(story.launch(), 7, [])
    BatchItem.objects.create(batch=replay, group=group, position=0, replay=1, advantages=[0.0, 0.0])
    with store.beyond_rights():
        ScoredGroup.objects.filter(key="a").update(given_rewards=[0.75, 0.25])
    page = " ".join(looked_at(curator, make(run, groups=["a"])).split())
    assert re.findall(r"<small>reward</small> ([\d.]+)", page) == ["0.75", "0.25"]
    assert re.findall(r">step (\d+)<", page) == ["0", "0"]


def test_duplicates_are_shown_with_where_they_are(curator: Client) -> None:
    rows = [told(LONG, "1"), told(f"{LONG}!", "2"), told("b"), told("b"), {"prompt": "p", "completion": "c"}]
    version = read_rows(*rows)
    counting.count(version.pk)
    page = looked_at(curator, version)
    assert "They say exactly the same" in page
    assert "They say nearly the same" in page
    assert "?after=2#m3" in page
    assert '"completion": "c"' in page


def test_members_are_shown_page_by_page(curator: Client) -> None:
    version = read_rows(*[told(f"answer {number}.") for number in range(45)])
    pages = [looked_at(curator, version, **query) for query in ({}, {"after": "19"}, {"after": "39"}, {"after": "99"})]
    for page, (begin, end) in zip(pages, [(0, 20), (20, 40), (40, 45), (0, 0)], strict=True):
        shown = [number for number in range(45) if f"answer {number}." in page]
        assert shown == list(range(begin, end))
    assert ["The next" in page for page in pages] == [True, True, False, False]


def test_pairs_show_both(curator: Client, run: Run) -> None:
    page = looked_at(curator, make(run, form="pairs"))
    assert "rollout 1 rather than 0" in page
    assert "The worse one" in page


def test_two_versions_are_compared(curator: Client, run: Run) -> None:
    version = make(run, min_reward=0.25)
    correct("a", 1)
    make(run, min_reward=0.0)
    page = read(curator, "dataset-difference", version.dataset.key)
    assert "Version 1 to 2" in page
    assert "Added" in page
    assert "Relabelled" in page
    address = reverse("dataset-difference", args=[version.dataset.key])
    assert "the same digest" in curator.get(address, {"before": 1, "after": 1}).content.decode()
    assert curator.get(address, {"before": 1, "after": 9}).status_code == 404
    assert curator.get(address, {"before": "x", "after": "-1"}).status_code == 200


def test_notes_and_licence_are_changed_and_versions_are_not(curator: Client, run: Run) -> None:
    version = make(run)
    page = send(curator, "dataset-describe", version.dataset.key, notes=SCRIPT, licence="CC-BY-4.0")
    assert "licence CC-BY-4.0" in page
    answer = curator.get(reverse("dataset", args=[version.dataset.key]))
    assert b"<script>alert" not in answer.content
    refused = {"licence": "x" * 201, "notes": "what I\r\ntyped"}
    page = send(curator, "dataset-describe", version.dataset.key, status=422, **refused)
    assert "at most 200" in page
    assert "what I\ntyped</textarea>" in page


def test_a_viewer_looks_and_makes_nothing(run: Run) -> None:
    version = make(run)
    viewer = signed_in(Role.VIEWER)
    assert "Make a version" not in read(viewer, "datasets")
    page = looked_at(viewer, version)
    assert "Say a" in page
    assert not re.findall("Train on it|>Export<|Make one of it", page)
    assert re.findall("Train on it|>Export<|Make one of it", looked_at(signed_in(Role.CURATOR), version)) == [
        ">Export<",
        "Make one of it",
    ]
    form = {"name": "mine", "project": run.project.slug, "runs": run.key}
    assert viewer.post(reverse("dataset-make"), form).status_code == 403
    assert viewer.post(reverse("dataset-describe", args=[version.dataset.key])).status_code == 403
    assert "Notes and licence" not in read(viewer, "dataset", version.dataset.key)


def test_what_people_of_another_project_have_is_not_found(run: Run) -> None:
    version = make(run)
    other = Client()
    other.force_login(make_user("el", role=Role.CURATOR, project=make_project("elsewhere")))
    for name, args in [("dataset", []), ("dataset-version", [1]), ("dataset-difference", [])]:
        assert other.get(reverse(name, args=[version.dataset.key, *args])).status_code == 404
    form = {"name": "mine", "project": "elsewhere", "runs": run.key}
    assert "is no run of this project" in send(other, "dataset-make", status=422, **form)


def test_a_group_and_a_queue_lead_to_datasets(curator: Client, run: Run) -> None:
    version = make(run)
    assert "good@1" in read(curator, "group", run.key, "a")
    queue = queues.create(run.project, name="look", actor="user:cy")
    assert f"queue={queue.key}" in read(curator, "queue", queue.key)
    filling.fill(queue)
    of_queue = make(run, queue=queue.key)
    assert "a queue" in read(curator, "dataset", version.dataset.key)
    assert queue.key in looked_at(curator, of_queue)


def test_markup_in_members_stays_text(curator: Client) -> None:
    version = read_rows(told(SCRIPT, SCRIPT), {"prompt": SCRIPT, "completion": SCRIPT})
    address = reverse("dataset-version", args=[version.dataset.key, 1])
    page = curator.get(address).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(("form", "beta"), [("examples", None), ("pairs", 0.1)])
def test_a_run_that_learns_from_a_version_is_launched_from_its_page(form: str, beta: float | None) -> None:
    model = make_model(make_project(), "mine", whole_model())
    run = story.launch(model={"path": model.source})
    story.submit(run, [played("a", [0.5, 1.0])], actor="api:t")
    version = make(run, form=form)
    operator = signed_in(Role.OPERATOR)
    [gallery] = re.findall(r'href="([^"]+)">Train on it', looked_at(operator, version))
    chosen = html.unescape(operator.get(gallery).content.decode())
    assert "preset=reverse-text-rl" not in chosen
    line = re.search("<code>rollyard launch (.+)</code>", chosen)
    assert line is not None
    preset, option, project, *words = shlex.split(line[1])
    assert (option, project) == ("--project", run.project.slug), "where the version is"
    typed = resolve(preset, overrides=words).config
    presets = re.findall(r'href="([^"]+preset=([^"&]+)[^"]*)"', chosen)
    address, preset = presets[0]
    assert (preset, len(presets) > 1) == ("reverse-text-sft", True)
    filled = operator.get(address).context["filled"]
    assert "<code>data.path</code>" in operator.get(address).content.decode()
    operator.post(address, as_posted(filled) | {"project": run.project.slug})
    learner = Run.objects.latest("pk")
    data = learner.parsed.data
    assert data is not None
    assert (data.path, data.solutions) == (f"dataset:{version}", False)
    assert (data.preference and data.preference.beta) == beta
    assert learner.parsed.model.path == model.source
    assert (typed.data, typed.register_as) == (data, learner.parsed.register_as), "a shell launches the same"
    assert [str(each.version) for each in learner.datasets.all()] == [str(version)]
    assert operator.get(f"{reverse('launch')}?version={version.pk}&preset=reverse-text-rl").status_code == 404


def test_a_version_of_others_is_not_learned_from(run: Run) -> None:
    version = make(run)
    stranger = Client()
    stranger.force_login(make_user("stranger", project=make_project("elsewhere")))
    for query in (f"version={version.pk}", f"version={version.pk}&preset=reverse-text-sft", "version=x", "version="):
        assert stranger.get(f"{reverse('launch')}?{query}").status_code == 404
