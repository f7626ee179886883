"""How two versions differ, and which versions somebody may see."""

import pytest

from rollouts.errors import Forbidden, NotFound
from rollouts.models import Role, Run, ScoredGroup
from rollouts.selectors import datasets
from rollouts.selectors.datasets import MemberChange
from tests.factories import make_project, make_user
from tests.rollouts import story
from tests.rollouts.datasets.test_importing import read, told
from tests.rollouts.datasets.test_making import correct, make, played, say

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    run = story.launch()
    story.submit(run, [played("a", [0.5, 1.0]), played("b", [0.0, 0.25])], actor="api:t")
    return run


def test_members_are_added_removed_and_relabelled(run: Run) -> None:
    before = make(run, min_reward=0.25)
    correct("a", 1)
    after = make(run, unwanted_below=0.5, limit=4)
    found = datasets.difference(before, after)
    assert found.counts == {"added": 1, "removed": 0, "relabelled": 2, "moved": 0, "same": 1}
    assert found.first["added"] == [MemberChange(None, 3)]
    assert found.first["relabelled"] == [MemberChange(0, 0), MemberChange(2, 2)]
    back = datasets.difference(after, before)
    assert (back.counts["removed"], back.first["removed"]) == (1, [MemberChange(3, None)])
    assert datasets.difference(after, after).counts["same"] == 4


def test_a_pair_the_other_way_round_is_relabelled(run: Run) -> None:
    before = make(run, form="pairs")
    say("a", "accept", rollout=0, other=1, preference="first")
    found = datasets.difference(before, make(run, form="pairs"))
    assert (found.counts["relabelled"], found.counts["same"]) == (1, 1)


def test_rows_of_a_file_are_compared_by_what_they_have() -> None:
    found = datasets.difference(read(told("a"), told("a"), told("b")), read(told("a"), told("c"), told("b", x=1)))
    assert found.counts == {"added": 2, "removed": 2, "relabelled": 0, "moved": 0, "same": 1}


def test_members_that_change_the_split_are_moved(run: Run) -> None:
    found = datasets.difference(make(run), make(run, validation_share=0.999))
    assert found.counts["moved"] == 4


def test_datasets_are_seen_by_the_people_of_their_project(run: Run) -> None:
    version = make(run)
    viewer, stranger = make_user("vi", role=Role.VIEWER), make_user("st", role=None)
    found = datasets.get(viewer, version.dataset.key)
    assert [row.newest for row in datasets.list_datasets(viewer)] == [1]
    assert datasets.version(found, 1) == version
    with pytest.raises(NotFound):
        datasets.version(found, 2)
    with pytest.raises(NotFound):
        datasets.version(found, 2**40)
    with pytest.raises(Forbidden):
        datasets.get(viewer, version.dataset.key, Role.CURATOR)
    with pytest.raises(NotFound):
        datasets.get(stranger, version.dataset.key)
    assert list(datasets.list_datasets(stranger)) == []
    assert make_project("elsewhere").datasets.count() == 0


def test_a_group_names_the_versions_that_have_rollouts_of_it(run: Run) -> None:
    one, two = make(run), make(run, limit=1)
    assert datasets.of_group(ScoredGroup.objects.get(key="a")) == [two, one]
    assert datasets.of_group(ScoredGroup.objects.get(key="b")) == [one]
