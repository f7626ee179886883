"""A version of a dataset is chosen by a recipe, in one transaction, and is what it is from then on."""

from collections.abc import Sequence
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from environments.types import PlayedGroup, StopReason
from rollouts.errors import Invalid
from rollouts.models import Dataset, DatasetMember, DatasetVersion, Label, LabelQueue, Rollout, Run, ScoredGroup, Verb
from rollouts.selectors import curation
from rollouts.services.curation import acts, filling, labels, queues, reviews, turns
from rollouts.services.curation.filters import QueueFilter
from rollouts.services.datasets import making
from rollouts.services.datasets.choosing import Recipe
from tests.factories import make_project, somebody
from tests.rollouts import story

pytestmark = pytest.mark.django_db
concurrent = pytest.mark.django_db(transaction=True)


def played(key: str, rewards: Sequence[float | None], **fields: Any) -> PlayedGroup:
    """A group whose rollouts say different things."""
    rollouts = [
        story.rollout(
            reward,
            messages=[{"role": "user", "content": f"Say {key}"}, {"role": "assistant", "content": f"{key}{number}"}],
        )
        for number, reward in enumerate(rewards)
    ]
    values: dict[str, Any] = {"environment": "reverse_text", "problem_key": key, "rollouts": rollouts} | fields
    return PlayedGroup(key=key, **values)


@pytest.fixture
def run() -> Run:
    run = story.launch()
    groups = [played("a", [0.5, 1.0]), played("b", [0.0, 0.25]), played("c", [1.0, None])]
    story.submit(run, groups, actor="api:t")
    return run


def make(run: Run, *, name: str = "good", form: str = "examples", **recipe: Any) -> DatasetVersion:
    where = {} if {"queue", "version"} & set(recipe) else {"runs": [run.key]}
    return making.make(run.project, name=name, form=form, recipe=Recipe(**(where | recipe)), actor="user:cy")


def members(version: DatasetVersion) -> list[str]:
    """`a1` each: group and number of the rollout; `-a1` is to be avoided, `a1>a0` is a pair, `a1*` is corrected."""
    rows = version.members.order_by("position").select_related("group", "rollout", "other")
    names = []
    for row in rows:
        assert row.group is not None
        assert row.rollout is not None
        name = f"{'' if row.is_wanted else '-'}{row.group.key}{row.rollout.index}{'*' if row.correction_id else ''}"
        names.append(name + (f">{row.group.key}{row.other.index}" if row.other else ""))
    assert [row.position for row in rows] == list(range(len(rows)))
    return names


def say(key: str, verdict: str = "accept", rollout: int | None = None, *, by: str = "somebody", **said: Any) -> Label:
    user = somebody(by)
    group = ScoredGroup.objects.get(key=key)
    return labels.say(group, user=user, actor=f"user:{user}", verdict=verdict, rollout=rollout, **said)


def correct(key: str, rollout: int, answer: str = "better") -> Label:
    group = ScoredGroup.objects.get(key=key)
    edited = [{"role": "user", "content": f"Say {key}"}, {"role": "assistant", "content": answer}]
    return Label.objects.create(
        run=group.run,
        group=group,
        rollout=Rollout.objects.get(group=group, index=rollout),
        person=somebody("editor"),
        actor="user:editor",
        verdict="accept",
        edited=edited,
    )


def test_all_that_was_scored_is_in_best_first_in_each_group(run: Run) -> None:
    version = make(run)
    assert (str(version), version.member_count) == ("good@1", 5)
    assert members(version) == ["a1", "a0", "b1", "b0", "c0"]


@pytest.mark.parametrize(
    ("recipe", "chosen"),
    [
        ({"best": 1}, ["a1", "b1", "c0"]),
        ({"min_reward": 0.5}, ["a1", "a0", "c0"]),
        ({"max_reward": 0.5}, ["a0", "b1", "b0"]),
        ({"best": 1, "max_reward": 0.9}, ["a0", "b1"]),
        ({"limit": 2}, ["a1", "a0"]),
        ({"groups": ["b", "c", "none"]}, ["b1", "b0", "c0"]),
        ({"environment": "reverse_text", "limit": 1}, ["a1"]),
        ({"states": ["ready"], "best": 1}, ["a1", "b1", "c0"]),
        ({"unwanted_below": 0.5}, ["a1", "a0", "-b1", "-b0", "c0"]),
        ({"unwanted_below": 0.5, "min_reward": 1.0}, ["a1", "-b1", "-b0", "c0"]),
    ],
)
def test_a_recipe_chooses_what_it_says(run: Run, recipe: dict[str, Any], chosen: list[str]) -> None:
    assert members(make(run, **recipe)) == chosen


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ({"min_reward": 2.0}, "Of 6 rollouts 5 have a lower reward, 1 have no reward or no sampled token"),
        ({"environment": "chess"}, "6 are of other environments"),
        ({"states": ["trained"]}, "6 are in groups of other states"),
        ({"accepted": True}, "5 are accepted by nobody"),
        ({"tags": ["loops"]}, "5 have none of the tags"),
        ({"has_correction": True}, "5 have no correction"),
    ],
)
def test_a_recipe_that_leaves_nothing_says_what_left_it_out(run: Run, recipe: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        make(run, **recipe)
    assert not Dataset.objects.exists()


@pytest.mark.parametrize(
    ("recipe", "field"),
    [
        ({"runs": []}, "runs"),
        ({"queue": "nosuch"}, "queue"),
        ({"version": "none@1"}, "version"),
        ({"version": "none"}, "version"),
        ({"version": f"none@{'9' * 30}"}, "version"),
        ({"runs": ["nosuch"]}, "runs"),
        ({"states": ["rejected"]}, "states"),
        ({"version": "none@1", "groups": ["a"]}, "groups"),
        ({"groups": ["k"] * 201}, "groups"),
        ({"groups": ["k" * 1000]}, "groups"),
        ({"min_gap": 0.5}, "min_gap"),
        ({"form": "pairs", "rejected": True}, "rejected"),
        ({"min_reward": 1.0, "max_reward": 0.0}, "max_reward"),
        ({"form": "songs"}, "form"),
        ({"name": "No Name"}, "name"),
    ],
)
def test_what_a_recipe_cannot_mean_is_told_by_field(run: Run, recipe: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        make(run, **recipe)
    assert field in refused.value.fields


def test_a_run_of_another_project_is_not_found(run: Run) -> None:
    foreign = story.launch(project=make_project("elsewhere"))
    with pytest.raises(Invalid, match="is no run of this project"):
        make(run, runs=[foreign.key])


def test_the_same_recipe_twice_gives_the_same_digest_and_another_number(run: Run) -> None:
    one, two, other = make(run, best=1), make(run, best=1), make(run, best=1, limit=1)
    assert (one.version, two.version, other.version) == (1, 2, 3)
    assert one.digest == two.digest != other.digest


def test_what_is_said_later_changes_nothing_in_a_version(run: Run) -> None:
    say("a", rollout=1)
    version = make(run, accepted=True)
    before = list(version.members.values())
    say("a", "reject", rollout=1)
    say("b", rollout=0)
    acts.perform(run, Verb.REJECT, ScoredGroup.objects.values_list("pk", flat=True), user=somebody(), actor="user:a")
    assert list(version.members.values()) == before
    assert members(version) == ["a1"]


def test_what_people_accept_is_in_and_what_one_rejects_is_out(run: Run) -> None:
    say("a")
    say("a", "reject", rollout=0)
    say("b", rollout=1)
    said = say("b", "reject", by="other")
    version = make(run, accepted=True)
    assert members(version) == ["a1"]
    say("b", "withdrawn", by="other")
    version = make(run, accepted=True)
    assert members(version) == ["a1", "b1"]
    assert said.pk not in version.members.get(position=1).labels
    assert len(version.members.get(position=0).labels) == 1


def test_what_people_reject_is_avoided_where_the_recipe_wants_it(run: Run) -> None:
    say("a", "reject", rollout=1)
    assert members(make(run)) == ["a0", "b1", "b0", "c0"]
    assert members(make(run, rejected=True, best=1)) == ["-a1", "a0", "b1", "c0"]
    assert members(make(run, unwanted_below=0.25)) == ["-a1", "a0", "b1", "-b0", "c0"]


def test_tags_are_of_a_rollout_or_of_its_group(run: Run) -> None:
    say("a", "skip", tags=["loops", "long"])
    say("b", "skip", rollout=0, tags=["long"])
    assert members(make(run, tags=["loops"])) == ["a1", "a0"]
    assert members(make(run, tags=["loops", "long"])) == ["a1", "a0", "b0"]


def test_words_of_a_blind_queue_count_when_it_is_closed(run: Run) -> None:
    queue = queues.create(run.project, name="blind", actor="user:cy", unit="rollout", is_blind=True)
    turn = turns.take(queue, somebody())
    assert turn is not None
    turns.answer(turn, user=somebody(), actor="user:somebody", verdict="accept")
    with pytest.raises(Invalid, match="accepted by nobody"):
        make(run, accepted=True)
    queues.close(queue)
    assert members(make(run, accepted=True)) == ["a0"]


def test_a_correction_is_learned_whatever_its_original_was_worth(run: Run) -> None:
    correction = correct("b", 0)
    version = make(run, min_reward=1.0)
    assert members(version) == ["a1", "b0*", "c0"]
    assert version.members.get(position=1).correction == correction
    assert members(make(run, has_correction=True)) == ["b0*"]
    assert members(make(run, best=1, unwanted_below=0.5)) == ["a1", "-b1", "b0*", "c0"]


def edited(key: str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"Say {key}"}, {"role": "assistant", "content": answer}]


@pytest.mark.parametrize("verdict", ["accept", "reject"])
def test_a_correction_counts_whatever_its_word_says_of_the_original(run: Run, verdict: str) -> None:
    correction = say("b", verdict, 0, edited=edited("b", "better"))
    version = make(run, best=1)
    assert members(version) == ["a1", "b0*", "c0"]
    assert version.members.get(position=1).correction == correction
    assert members(make(run, accepted=True)) == ["b0*"]
    assert members(make(run, form="pairs")) == ["a1>a0", "b0*>b0"]


def test_somebody_else_who_rejects_a_rollout_leaves_its_correction_out_too(run: Run) -> None:
    say("b", "reject", 0, edited=edited("b", "better"))
    say("b", "reject", 0, by="another")
    assert members(make(run, best=1)) == ["a1", "b1", "c0"]


def test_what_was_typed_before_a_skip_corrects_nothing(run: Run) -> None:
    say("b", "skip", 1, edited=edited("b", "half a thou"))
    assert members(make(run, best=1)) == ["a1", "b1", "c0"]
    assert members(make(run, form="pairs")) == ["a1>a0", "b1>b0"]
    say("b", "accept", 1, by="another", edited=edited("b", "better"))
    assert members(make(run, best=1)) == ["a1", "b1*", "c0"]


def test_a_withheld_group_is_in_no_version(run: Run) -> None:
    [group] = ScoredGroup.objects.filter(key="a")
    acts.perform(run, Verb.EXCLUDE, [group.pk], user=somebody(), actor="user:a")
    assert members(make(run, best=1)) == ["b1", "c0"]
    with pytest.raises(Invalid, match="withhold"):
        make(run, min_reward=1.0, environment="reverse_text", states=["ready"], has_correction=True)


def test_a_truncated_rollout_is_in_if_the_recipe_wants_it(run: Run) -> None:
    cut = played("d", [], rollouts=[story.rollout(1.0, stop_reason=StopReason.LENGTH), story.rollout(0.5)])
    story.submit(run, [cut], actor="api:t")
    assert members(make(run, best=1))[-1] == "d1"
    assert members(make(run, best=1, truncated=True))[-1] == "d0"


def test_the_best_are_those_of_each_seat() -> None:
    run = story.launch()
    seats = [("white", 0.25), ("black", 1.0), ("white", 0.5), ("black", 0.75)]
    rollouts = [story.rollout(reward, seat=seat) for seat, reward in seats]
    story.submit(run, [played("m", [], rollouts=rollouts)], actor="api:t")
    assert members(make(run, best=1)) == ["m1", "m2"]
    assert members(make(run, form="pairs")) == ["m1>m3", "m2>m0"]


def test_a_problem_is_in_the_same_split_in_every_version(run: Run) -> None:
    problems = [played(f"p{number}", [1.0, 0.0]) for number in range(60)]
    story.submit(run, problems, actor="api:t")
    again = story.launch()
    story.submit(again, [played(each.key or "", [1.0, 0.5]) for each in problems], actor="api:t")
    splits: dict[str, set[str]] = {}
    versions = [make(run, validation_share=0.2), make(again, validation_share=0.2, name="other")]
    versions.append(make(run, version="good@1", best=1))
    for version in versions:
        for split, key in version.members.values_list("split", "group__problem_key"):
            splits.setdefault(key, set()).add(split)
    assert all(len(each) == 1 for each in splits.values())
    held_out = [key for key, each in splits.items() if each == {"eval"}]
    assert 5 <= len(held_out) <= 20
    assert set(make(run).members.values_list("split", flat=True)) == {"train"}


def test_pairs_are_the_best_beside_the_worst(run: Run) -> None:
    assert members(make(run, form="pairs")) == ["a1>a0", "b1>b0"]
    assert members(make(run, form="pairs", min_gap=0.3)) == ["a1>a0"]
    assert members(make(run, form="pairs", min_reward=0.5)) == ["a1>a0"]
    with pytest.raises(Invalid, match="no two of a group make a pair"):
        make(run, form="pairs", min_gap=0.5)


def compare(queue: LabelQueue, name: str, preference: str) -> Label:
    person = somebody(name)
    turn = turns.take(queue, person)
    assert turn is not None
    return turns.answer(turn, user=person, actor=f"user:{name}", verdict="accept", preference=preference)


def test_people_who_compare_decide_which_of_two_is_better(run: Run) -> None:
    say("a", "accept", rollout=0, other=1, preference="first")
    say("b", "accept", rollout=0, other=1, preference="tie")
    version = make(run, form="pairs")
    assert members(version) == ["a0>a1"]
    assert version.members.get().labels == [Label.objects.get(preference="first").pk]
    for name, parent in (("next", "good@1"), ("last", "next@1")):
        apart = make(run, name=name, form="pairs", version=parent, min_gap=0.9)
        assert (members(apart), apart.members.get().labels) == (["a0>a1"], version.members.get().labels)
    say("a", "accept", rollout=1, other=0, preference="first", by="other")
    with pytest.raises(Invalid, match="make a pair"):
        make(run, form="pairs")
    say("a", "accept", rollout=1, other=0, preference="first", by="third")
    assert members(make(run, form="pairs")) == ["a1>a0"]
    assert members(make(run, form="pairs", accepted=True)) == ["a1>a0"]


def test_a_pair_is_made_where_two_are_decided_and_a_tie_is_a_voice_there(run: Run) -> None:
    group = ScoredGroup.objects.get(key="a")
    for by, preference, word in (
        ("cy", "first", "first"),
        ("di", "tie", ""),
        ("eve", "tie", "tie"),
        ("eve", "first", "first"),
    ):
        say("a", rollout=0, other=1, preference=preference, by=by)
        [decision] = curation.decided(group)
        assert decision.word == word
        if word == "first":
            assert members(make(run, form="pairs", groups=["a"])) == ["a0>a1"]
        else:
            with pytest.raises(Invalid, match="make a pair"):
                make(run, form="pairs", groups=["a"])


def test_of_what_one_person_says_of_two_the_newest_counts_wherever_and_in_which_order_it_was_said(run: Run) -> None:
    filled = QueueFilter(run=run.key, groups=["a"])
    compare(queues.create(run.project, name="q", actor="user:cy", unit="pair", filter=filled), "cy", "other")
    say("a", rollout=0, other=1, preference="other", by="cy")
    say("a", rollout=1, other=0, preference="other", by="cy")
    version = make(run, form="pairs", groups=["a"])
    assert members(version) == ["a0>a1"]
    assert version.members.get().labels == [Label.objects.latest("pk").pk]


def test_a_pair_is_as_it_was_adjudicated_whatever_the_majority_says(run: Run) -> None:
    every = QueueFilter(run=run.key, groups=["a"])
    source = queues.create(run.project, name="q", actor="user:cy", unit="pair", filter=every, words_per_item=3)
    for name, preference in (("cy", "first"), ("di", "first"), ("eve", "other")):
        compare(source, name, preference)
    assert members(make(run, form="pairs", groups=["a"])) == ["a0>a1"]
    for name, preference, found in (("fay", "first", "a0>a1"), ("gil", "other", "a1>a0")):
        deciding = queues.create(run.project, name=f"by {name}", actor="user:cy", source=source.key)
        word = compare(deciding, name, preference)
        version = make(run, form="pairs", groups=["a"])
        assert members(version) == [found]
        assert version.members.get().labels == [word.pk]


def test_a_correction_is_a_pair_with_what_it_corrects(run: Run) -> None:
    correct("b", 1)
    assert members(make(run, form="pairs")) == ["a1>a0", "b1*>b1"]


def test_rollouts_that_say_the_same_make_no_pair() -> None:
    run = story.launch()
    said = [{"role": "user", "content": "Say a"}, {"role": "assistant", "content": "a"}]
    group = played("a", [], rollouts=[story.rollout(reward, messages=said) for reward in (0.0, 1.0)])
    story.submit(run, [group], actor="api:t")
    with pytest.raises(Invalid, match="too alike"):
        make(run, form="pairs")


@pytest.mark.parametrize(
    ("unit", "found"), [("group", ["a1", "a0", "b1", "b0", "c0"]), ("rollout", ["a1", "a0", "c0"])]
)
def test_a_queue_gives_what_it_holds(run: Run, unit: str, found: list[str]) -> None:
    chosen = QueueFilter(min_reward=0.5) if unit == "rollout" else QueueFilter()
    queue = queues.create(run.project, name="look", actor="user:cy", unit=unit, filter=chosen)
    filling.fill(queue)
    version = make(run, queue=queue.key)
    assert members(version) == found
    assert version.recipe["queue"] == queue.key


def test_a_version_is_made_of_another(run: Run) -> None:
    parent = make(run, unwanted_below=0.5, validation_share=0.5)
    say("a", "reject", rollout=0)
    version = make(run, version="good@1")
    assert version.parent == parent
    assert members(version) == ["a1", "-b1", "-b0", "c0"]
    assert version.recipe["validation_share"] == 0.5
    make(run, name="pairs", form="pairs")
    assert members(make(run, name="fewer", form="pairs", version="pairs@1", min_gap=0.3)) == ["a1>a0"]
    with pytest.raises(Invalid, match="has pairs"):
        make(run, version="pairs@1")


def test_a_version_and_its_members_are_made_together_or_not_at_all(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(making, "_locked", stumble)
    with pytest.raises(RuntimeError):
        make(run)
    assert not DatasetMember.objects.exists()


def test_nobody_changes_a_version(run: Run) -> None:
    version = make(run)
    for table, change in [
        ("rollouts_datasetmember", "is_wanted = false"),
        ("rollouts_datasetversion", "digest = ''"),
        ("rollouts_dataset", "name = 'other'"),
    ]:
        with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
            connection.cursor().execute(f"UPDATE {table} SET {change}")
        with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
            connection.cursor().execute(f"DELETE FROM {table}")
    assert version.members.count() == 5


@concurrent
def test_two_who_make_the_next_version_at_the_same_moment_get_different_numbers() -> None:
    run = story.launch()
    story.submit(run, [played("a", [1.0, 0.0])], actor="api:t")
    made = story.together(*[lambda: make(run)] * 3)
    assert sorted(version.version for version in made) == [1, 2, 3]
    assert Dataset.objects.count() == 1


def test_rewards_that_people_gave_decide_what_is_chosen(run: Run) -> None:
    held = story.launch(environments=[{"name": "reverse_text", "review": {}}], project=run.project)
    story.submit(held, [story.scored("h", rewards=(1.0, 0.0))], actor="api:t")
    group = held.groups.get()
    for index, score in enumerate((0.1, 0.9)):
        reviews.say(group, user=somebody("cy"), actor="user:cy", verdict="accept", rollout=index, score=score)
    recipe = Recipe(runs=[held.key], best=1, min_reward=0.5)
    version = making.make(run.project, name="given", form="examples", recipe=recipe, actor="user:cy")
    assert [member.rollout.index for member in version.members.select_related("rollout")] == [1]


def test_a_queue_of_pairs_gives_the_pairs_that_people_compared(run: Run) -> None:
    story.submit(run, [story.scored("p", rewards=(1.0, 0.5, 0.0))], actor="api:t")
    queue = queues.create(run.project, name="pairs", actor="user:cy", unit="pair", filter=QueueFilter(run=run.key))
    cy = somebody("cy")
    while (turn := turns.take(queue, cy)) is not None:
        turns.answer(turn, user=cy, actor="user:cy", verdict="accept", preference="other")
    version = making.make(run.project, name="compared", form="pairs", recipe=Recipe(queue=queue.key), actor="user:cy")
    found = {(each.group.key, each.rollout.index, each.other.index) for each in version.members.all()}
    assert ("p", 2, 0) in found, "the other one, of the best and the worst"
