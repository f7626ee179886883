"""People in the loop of a run: what is held is trained when somebody has scored or accepted it, and not before."""

from typing import Any

import msgspec
import pytest
from django.db.models.functions import Now

from rollouts.formats.atropos.extras import Extras
from rollouts.models import (
    Act,
    Event,
    GroupTokens,
    KnownProblem,
    LabelVerdict,
    QueueItem,
    Rollout,
    Run,
    ScoredGroup,
    Verb,
)
from rollouts.pools import Pool
from rollouts.services.batches import forming
from rollouts.services.curation import acts, filling, filters, queues, reviews, turns
from rollouts.services.groups import next_groups, problems
from rollouts.services.runs import life
from rollouts.states import GroupState, RunState
from tests import store
from tests.factories import somebody
from tests.rollouts import story
from trainers.wire import TrainingBatch

pytestmark = pytest.mark.django_db


def launch(review: dict[str, Any] | None = None, **overrides: Any) -> Run:
    return story.launch(environments=[{"name": "reverse_text", "review": review or {}}], **overrides)


def submit(run: Run, *keys: str, rewards: tuple[float, ...] = (1.0, 0.0)) -> None:
    story.submit(run, [story.scored(key, rewards=rewards) for key in keys], actor="api:t")


def group(key: str) -> ScoredGroup:
    return ScoredGroup.objects.get(key=key)


def say(key: str, verdict: str = "accept", by: str = "cy", **said: Any) -> None:
    reviews.say(group(key), user=somebody(by), actor=f"user:{by}", verdict=verdict, **said)


def score(key: str, *values: float, by: str = "cy") -> None:
    for index, value in enumerate(values):
        say(key, "accept", by, rollout=index, score=value)


def let_time_pass(run: Run) -> None:
    ScoredGroup.objects.filter(run=run, state=GroupState.HELD).update(review_until=Now())


def test_nothing_is_trained_before_a_person_has_looked_at_it() -> None:
    run = launch()
    submit(run, "a", "b")
    assert [group(key).state for key in "ab"] == ["held", "held"]
    epoch = story.register(run).epoch
    assert forming.fetch(run, epoch=epoch, step=0) is None
    say("a")
    assert forming.fetch(run, epoch=epoch, step=0) is None
    say("b")
    assert forming.fetch(run, epoch=epoch, step=0) is not None
    assert str(group("a").state_reason) == "step 0"
    said = Event.objects.get(object_id=group("a").pk, from_state="held")
    assert (said.to_state, said.actor, said.reason_code) == ("ready", "user:cy", "reviewed")


def test_scores_of_people_are_what_is_trained_and_the_environments_rewards_stay_beside_them() -> None:
    run = launch()
    submit(run, "a", "b")
    score("a", 0.25, 0.75)
    score("b", 3.0, -1.0)
    outgoing = forming.fetch(run, epoch=story.register(run).epoch, step=0)
    assert outgoing is not None
    batch = msgspec.msgpack.decode(outgoing.body, type=TrainingBatch)
    trained = [(each.reward, round(each.advantage)) for each in batch.rollouts]
    assert trained == [(0.25, -1), (0.75, 1), (3.0, 1), (-1.0, -1)]
    row = group("a")
    assert (row.given_rewards, row.reward_mean, row.solved_count) == ([0.25, 0.75], 0.5, 0)
    assert list(Rollout.objects.filter(group=row).order_by("index").values_list("reward", flat=True)) == [1.0, 0.0]


def test_queues_go_by_the_rewards_that_people_gave() -> None:
    run = launch()
    submit(run, "a", rewards=(1.0, 0.5, 0.0))
    score("a", 0.0, 0.25, 0.5)

    def found(unit: str, **chosen: Any) -> list[tuple[int | None, int | None]]:
        name = f"{unit} {chosen}"
        queue = queues.create(run.project, name=name, actor="user:cy", unit=unit, filter=filters.QueueFilter(**chosen))
        filling.fill(queue)
        items = QueueItem.objects.filter(queue=queue).order_by("id")
        return list(items.values_list("rollout__index", "other__index"))

    assert found("rollout", min_reward=0.25) == [(1, None), (2, None)]
    assert found("group", min_gap=0.6) == []
    assert len(found("group", max_gap=0.6)) == 1
    submit(run, "b", rewards=(1.0, 0.5, 0.0))
    score("b", 1.0, 0.0, 0.5)
    assert found("pair", run=run.key, groups=["b"]) == [(0, 1)]


def test_a_part_of_the_scores_lets_nothing_go_and_the_mean_of_several_people_counts() -> None:
    run = launch()
    submit(run, "a")
    say("a", rollout=0, score=1.0)
    say("a", by="di", rollout=0, score=0.0)
    assert group("a").state == "held"
    say("a", rollout=1, score=0.0)
    assert (group("a").state, group("a").given_rewards) == ("ready", [0.5, 0.0])


def say_in_a_queue(run: Run, score: float, by: str = "cy") -> None:
    """On the first rollout of the first group that waits."""
    waiting = filters.QueueFilter(run=run.key, state="held")
    queue = queues.create(run.project, name="look", actor="user:cy", unit="rollout", filter=waiting)
    turn = turns.take(queue, somebody(by))
    assert turn is not None
    assert turn.item.rollout is not None
    assert turn.item.rollout.index == 0
    turns.answer(turn, user=somebody(by), actor=f"user:{by}", verdict="accept", score=score)


def test_who_speaks_in_a_queue_and_on_the_groups_page_is_one_voice_and_the_newest_word_counts() -> None:
    run = launch()
    submit(run, "a")
    say_in_a_queue(run, 0.0)
    say("a", rollout=0, score=1.0)
    say("a", rollout=1, score=0.5)
    assert (group("a").state, group("a").given_rewards) == ("ready", [1.0, 0.5])


def test_who_speaks_twice_weighs_no_more_than_others() -> None:
    run = launch()
    submit(run, "a")
    say("a", rollout=0, score=1.0)
    say_in_a_queue(run, 1.0)
    say("a", by="di", rollout=0, score=0.0)
    say("a", rollout=1, score=0.5)
    assert group("a").given_rewards == [0.5, 0.5]


def test_a_word_that_is_taken_back_or_skips_leaves_what_the_person_said_elsewhere() -> None:
    run = launch()
    submit(run, "a", "b")
    say_in_a_queue(run, 0.25)
    for key, verdict in (("a", "skip"), ("b", "withdrawn")):
        say(key, rollout=0, score=1.0)
        say(key, verdict, rollout=0)
        say(key, rollout=1, score=0.5)
    assert group("a").given_rewards == [0.25, 0.5]
    assert group("b").state == "held"


def test_accept_and_reject_are_rewards_where_the_run_says_so() -> None:
    run = launch({"rewards": "verdicts"})
    submit(run, "a", rewards=(0.3, 0.3))
    say("a", "accept", rollout=0)
    say("a", "reject", rollout=1)
    assert (group("a").state, group("a").given_rewards) == ("ready", [1.0, 0.0])


def test_an_accepted_group_keeps_the_environments_rewards() -> None:
    run = launch()
    submit(run, "a")
    say("a", note="as it is")
    assert (group("a").state, group("a").given_rewards, group("a").review_until) == ("ready", None, None)


def test_a_rejected_group_is_rejected_as_by_an_act_and_held_again_when_that_is_undone() -> None:
    run = launch()
    submit(run, "a")
    say("a", "reject")
    assert (group("a").state, group("a").withheld) == ("rejected", "rejected")
    acts.undo(Act.objects.get(), user=somebody("cy"), actor="user:cy")
    assert (group("a").state, group("a").withheld) == ("held", "")
    say("a", "skip", by="ed")
    assert group("a").state == "held", "the word that was undone is nobody else's"
    say("a", "accept", by="di")
    assert group("a").state == "ready"
    assert run.acts.count() == 2


def test_the_filters_of_the_run_look_at_the_rewards_that_people_gave() -> None:
    run = launch(algorithm__filter_zero_advantage=True)
    submit(run, "a", "b", rewards=(0.5, 0.5))
    score("a", 0.0, 1.0)
    score("b", 1.0, 1.0)
    assert [group(key).state for key in "ab"] == ["ready", "filtered"]
    assert run.groups.filter(reason_code="zero_advantage").count() == 1


def test_rewards_of_people_that_differ_and_leave_no_advantage_are_filtered_too() -> None:
    run = launch(algorithm__filter_zero_advantage=True, algorithm__advantage="max_rl")
    submit(run, "a", "b", rewards=(0.5, 0.5))
    score("a", -1.0, 1.0)
    score("b", -1.0, 2.0)
    assert [group(key).state for key in "ab"] == ["filtered", "ready"]
    assert run.groups.filter(reason_code="no_advantage").count() == 1


def test_advantages_that_the_environment_set_to_zero_stay_so_whatever_people_gave() -> None:
    run = launch(algorithm__filter_zero_advantage=True)
    submit(run, "a", "b", rewards=(0.5, 0.5))
    asked = Extras(json={"overrides": b'[{"set_advantage_to_zero": true}, {"set_advantage_to_zero": true}]'})
    with store.beyond_rights():  # as groups of Atropos' environments come
        GroupTokens.objects.filter(group=group("a")).update(extras=asked.pack())
    score("a", 0.0, 1.0)
    score("b", 0.0, 1.0)
    assert [group(key).state for key in "ab"] == ["filtered", "ready"]


@pytest.mark.parametrize(("on_deadline", "state"), [("reward", "ready"), ("drop", "surplus")])
def test_what_nobody_looked_at_in_time_counts_as_it_is_or_is_dropped(on_deadline: str, state: str) -> None:
    run = launch({"deadline_s": 60.0, "on_deadline": on_deadline})
    submit(run, "a", "b")
    say("a", rollout=0, score=5.0)
    assert reviews.expire(run) == 0
    let_time_pass(run)
    assert reviews.expire(run) == 2
    assert (group("a").state, group("a").given_rewards) == (state, None)
    assert str(group("a").state_reason) == "nobody looked at it within 60 s"
    score("a", 1.0, 0.0)
    assert group("a").given_rewards is None, "said too late"


def test_of_what_nobody_looked_at_the_filters_of_the_run_drop_what_they_drop_of_any_other() -> None:
    run = launch({"deadline_s": 60.0}, algorithm__filters__all_solved=True)
    submit(run, "a", rewards=(1.0, 1.0))
    submit(run, "b", rewards=(1.0, 0.0))
    score("a", 0.0)
    let_time_pass(run)
    assert reviews.expire(run) == 2
    assert [(group(key).state, group(key).reason_code) for key in "ab"] == [
        ("filtered", "all_solved"),
        ("ready", "unreviewed"),
    ]


def test_only_the_share_is_held() -> None:
    run = launch({"share": 0.5})
    submit(run, *(f"g{number}" for number in range(64)))
    held = run.groups.filter(state="held").count()
    assert 8 < held < 56
    assert run.groups.filter(state="ready").count() == 64 - held


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_of_what_is_held_the_share_counts_as_played_ahead(share: float) -> None:
    run = launch({"share": share})
    before = next_groups.capacity(run).capacity
    submit(run, *(f"g{number}" for number in range(16)))
    held = run.groups.filter(state="held").count()
    assert next_groups.capacity(run).capacity == before - 2 * (16 - held) - round(2 * held * share)


def test_what_is_held_when_its_run_ends_is_surplus() -> None:
    run = launch()
    submit(run, "a")
    life.end(run, to=RunState.FAILED, actor="user:ada")
    assert group("a").state == "surplus"
    score("a", 1.0, 0.0)
    assert group("a").state == "surplus"


def test_a_queue_of_held_rollouts_is_how_people_give_rewards() -> None:
    run = launch()
    submit(run, "a")
    queue = queues.create(
        run.project, name="q", actor="user:cy", unit="rollout", filter=filters.QueueFilter(run=run.key, state="held")
    )
    cy = somebody("cy")
    for value in (0.5, 2.0):
        turn = turns.take(queue, cy)
        assert turn is not None
        turns.answer(turn, user=cy, actor="user:cy", verdict=LabelVerdict.ACCEPT, score=value)
    assert (group("a").state, group("a").given_rewards) == ("ready", [0.5, 2.0])
    assert turns.take(queue, cy) is None


@pytest.mark.parametrize("on_reject", ["", "reject", "exclude"])
def test_a_reject_in_a_queue_of_held_groups_is_undone_with_the_word(on_reject: str) -> None:
    run = launch()
    submit(run, "a")
    held = filters.QueueFilter(state="held")
    queue = queues.create(run.project, name="q", actor="user:cy", filter=held, on_reject=on_reject)
    cy = somebody("cy")
    turn = turns.take(queue, cy)
    assert turn is not None
    turns.answer(turn, user=cy, actor="user:cy", verdict=LabelVerdict.REJECT)
    assert group("a").state == "rejected"
    turns.undo(queue, cy, actor="user:cy")
    assert (group("a").state, group("a").withheld) == ("held", "")


def test_a_held_group_waits_for_people_again_when_the_last_word_that_rejected_it_is_taken_back() -> None:
    run = launch({"rewards": "verdicts"})
    submit(run, "a")
    say("a", "accept", rollout=0, by="di")
    worst = filters.QueueFilter(max_reward=0.0)
    queue = queues.create(run.project, name="q", actor="user:cy", unit="rollout", filter=worst, on_reject="reject")
    turn = turns.take(queue, somebody("cy"))
    assert turn is not None
    turns.answer(turn, user=somebody("cy"), actor="user:cy", verdict=LabelVerdict.REJECT)
    assert group("a").state == "rejected"
    turns.undo(queue, somebody("cy"), actor="user:cy")
    assert group("a").state == "held"


def test_an_act_rejects_what_is_held() -> None:
    run = launch()
    submit(run, "a")
    acts.perform(run, Verb.REJECT, [group("a").pk], user=somebody("cy"), actor="user:cy")
    assert group("a").state == "rejected"
    score("a", 1.0, 0.0)
    assert group("a").state == "rejected"


def test_a_rollout_that_is_accepted_without_a_score_keeps_the_reward_it_has() -> None:
    run = launch()
    submit(run, "a")
    say("a", "accept", rollout=0)
    assert group("a").state == "held"
    say("a", "reject", rollout=1)
    assert group("a").state == "held", "said no to, without saying what it is worth"
    say("a", "reject", rollout=1, score=0.5)
    assert (group("a").state, group("a").given_rewards) == ("ready", [1.0, 0.5])
    assert run.groups.count() == 1


def test_what_is_held_and_too_old_for_every_batch_to_come_holds_nothing_up() -> None:
    run = launch({"share": 1.0}, algorithm__max_off_policy_steps=1, max_steps=9)
    epoch = story.register(run).epoch
    submit(run, *(f"old{number}" for number in range(4)))
    for step in range(2):
        submit(run, *(f"g{step}{number}" for number in range(run.parsed.batch.batch_size // 2)))
        for number in range(run.parsed.batch.batch_size // 2):
            say(f"g{step}{number}")
        delivery = forming.fetch(run, epoch=epoch, step=step)
        assert delivery is not None
        story.ack(run, epoch, step, delivery.sha256)
        story.announce(run, epoch, step + 1)
        story.publish(run)
    assert group("old0").state == "held"
    fresh = story.fresh(run)
    with_old = next_groups.capacity(fresh).capacity
    ScoredGroup.objects.filter(key__startswith="old").update(state=GroupState.SURPLUS, review_until=None)
    assert with_old == next_groups.capacity(fresh).capacity


@pytest.mark.parametrize(("scores", "pool"), [((1.0, 0.0), Pool.NORMAL), ((1.0, 1.0), Pool.EASY), (None, Pool.HARD)])
def test_pools_go_by_the_rewards_that_count(scores: tuple[float, ...] | None, pool: Pool) -> None:
    played = {"name": "reverse_text", "pools": {}, "review": {}}
    run, _ = story.train(environments=[played])
    problems.note_count(run, run.parsed.environments[0], 100)
    [claim] = story.claim(run, 1)
    story.settle(claim, rewards=(0.0, 0.0))
    assert group(claim.group).state == "held"
    problem = KnownProblem.objects.get(environment__run=run, problem_index=claim.problem_index)
    assert problem.groups == 0
    if scores is None:
        let_time_pass(run)
        reviews.expire(run)
    else:
        score(claim.group, *scores)
    problem.refresh_from_db()
    assert (problem.groups, problem.pool) == (1, pool)
