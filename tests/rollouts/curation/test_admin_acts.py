"""What the administration site does to groups and versions that were chosen in a list of it."""

import pytest
from django.contrib.auth.models import User
from django.db.models import QuerySet

from rollouts.admin import curation as admin_of_curation
from rollouts.models import Membership, Role, ScoredGroup
from rollouts.services.datasets import making
from rollouts.services.datasets.choosing import Recipe
from tests.factories import make_project
from tests.rollouts import story
from tests.rollouts.curation.administration import address, staff

pytestmark = pytest.mark.django_db


def chosen(rows: QuerySet[ScoredGroup]) -> list[int]:
    return list(rows.values_list("pk", flat=True))


@pytest.mark.parametrize(("role", "changed"), [(Role.CURATOR, 2), (Role.VIEWER, 0)])
def test_a_curator_acts_on_the_groups_of_own_projects_and_a_viewer_on_none(role: Role, changed: int) -> None:
    own, foreign = story.launch(), story.launch(project=make_project("elsewhere"))
    for run in (own, foreign):
        story.submit(run, [story.scored("a"), story.scored("b")], actor="api:t")
    client = staff(role, own.project)
    form = {"action": "reject_groups", "_selected_action": chosen(ScoredGroup.objects.all())}
    client.post(address(ScoredGroup, "changelist"), form)
    rejected = ScoredGroup.objects.filter(state="rejected")
    assert [row.run for row in rejected] == [own] * changed
    client.post(address(ScoredGroup, "changelist"), form | {"action": "restore_groups"})
    assert not ScoredGroup.objects.filter(state="rejected").exists()


@pytest.mark.parametrize(("most", "changed"), [(2, 0), (3, 3)])
def test_an_act_on_all_groups_of_a_list_is_on_no_more_than_it_counts(
    monkeypatch: pytest.MonkeyPatch, most: int, changed: int
) -> None:
    run = story.launch()
    story.submit(run, [story.scored("a"), story.scored("b"), story.scored("c")], actor="api:t")
    monkeypatch.setattr(admin_of_curation, "MAX_COUNTED", most)
    form = {"action": "reject_groups", "_selected_action": chosen(run.groups.all())[:1], "select_across": "1"}
    answer = staff(Role.CURATOR, run.project).post(address(ScoredGroup, "changelist"), form, follow=True)
    assert run.groups.filter(state="rejected").count() == changed
    assert ("Narrow it" in answer.content.decode()) == (not changed)


@pytest.mark.parametrize(
    ("action", "page", "field"), [("queue_groups", "queues", "run"), ("add_to_dataset", "datasets", "runs")]
)
def test_chosen_groups_of_a_run_are_named_in_the_form_that_an_action_leads_to(
    action: str, page: str, field: str
) -> None:
    own, other = story.launch(), story.launch()
    for run in (own, other):
        story.submit(run, [story.scored("a"), story.scored("b"), story.scored("c")], actor="api:t")
    client = staff(Role.CURATOR, own.project)
    two = chosen(own.groups.exclude(key="b"))
    form = {"action": action, "_selected_action": two}
    answer = client.post(address(ScoredGroup, "changelist"), form, follow=True)
    assert answer.resolver_match.url_name == page
    assert (answer.context["form"].values[field], answer.context["form"].values["groups"]) == (own.key, "a,c")
    story.submit(own, [story.scored("a,b")], actor="api:t")
    for groups in ([*two, *chosen(other.groups.all())], chosen(own.groups.filter(key="a,b"))):
        answer = client.post(address(ScoredGroup, "changelist"), form | {"_selected_action": groups}, follow=True)
        assert "groups of one run" in answer.content.decode()


def test_a_version_of_ones_own_is_led_to_its_export() -> None:
    run = story.launch()
    story.submit(run, [story.scored("a")], actor="api:t")
    version = making.make(run.project, name="good", form="examples", recipe=Recipe(runs=[run.key]), actor="test")
    form = {"action": "export_version", "_selected_action": [version.pk]}
    answer = staff(Role.CURATOR, run.project).post(address(type(version), "changelist"), form, follow=True)
    assert answer.context["given"]["version"] == str(version.pk)
    viewer = staff(Role.VIEWER, run.project)
    curator_elsewhere = User.objects.get(username=f"staff-viewer-{run.project.slug}")
    Membership.objects.create(user=curator_elsewhere, project=make_project("elsewhere"), role=Role.CURATOR)
    other = story.launch(project=make_project("elsewhere"))
    story.submit(other, [story.scored("a")], actor="api:t")
    own = making.make(other.project, name="good", form="examples", recipe=Recipe(runs=[other.key]), actor="test")
    for chosen_versions in ([version.pk], [version.pk, own.pk]):
        form["_selected_action"] = chosen_versions
        answer = viewer.post(address(type(version), "changelist"), form, follow=True)
        assert "in which you are a curator" in answer.content.decode()
