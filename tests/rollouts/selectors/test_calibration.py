"""Whether the reward agrees with people: figures that were worked out by hand."""

from collections.abc import Sequence

import pytest

from rollouts.models import ScoredGroup
from rollouts.selectors import calibration
from rollouts.selectors.calibration import WordOn, of_words, wilson
from rollouts.services.curation import labels, queues, reviews, turns
from tests.factories import somebody
from tests.rollouts import story


def words(accepted: int, rejected: int, *, reward: float, version: int = 0, environment: str = "e") -> Sequence[WordOn]:
    return [WordOn(number < accepted, reward, environment, version) for number in range(accepted + rejected)]


@pytest.mark.parametrize(
    ("accepted", "said", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3: Wilson's score without continuity correction.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_intervals_are_those_of_the_literature(accepted: int, said: int, low: float, high: float) -> None:
    assert wilson(accepted, said) == pytest.approx((low, high), abs=5e-5)


def test_acceptance_is_counted_by_reward_environment_and_version() -> None:
    found = of_words([*words(2, 8, reward=0.1, version=1), *words(9, 1, reward=0.9, version=5, environment="f")])
    assert [(line.of, line.words, line.share, line.reward) for line in found.by_reward] == [
        ("0.1 to 0.1", 10, 0.2, pytest.approx(0.1)),
        ("0.9 to 0.9", 10, 0.9, pytest.approx(0.9)),
    ]
    assert [(line.of, line.share) for line in found.by_environment] == [("e", 0.2), ("f", 0.9)]
    assert [(line.of, line.accepted) for line in found.by_version] == [("v1 to v1", 2), ("v5 to v5", 9)]
    assert not found.is_hacked


def test_equal_rewards_are_together_and_no_part_is_small() -> None:
    found = of_words([*words(30, 0, reward=0.0), *words(1, 1, reward=0.5), *words(12, 0, reward=1.0)])
    assert [line.words for line in found.by_reward] == [30, 14]
    assert sum(line.words for line in found.by_reward) == found.words == 44


def test_a_reward_that_rises_while_people_accept_less_is_an_alarm() -> None:
    earlier, later = words(18, 2, reward=0.3, version=1), words(3, 17, reward=0.8, version=9)
    assert of_words([*earlier, *later]).is_hacked
    assert not of_words(earlier).is_hacked
    falling = words(3, 17, reward=0.2, version=9)
    assert not of_words([*earlier, *falling]).is_hacked
    by_chance = words(16, 4, reward=0.8, version=9)
    assert not of_words([*earlier, *by_chance]).is_hacked


@pytest.mark.django_db
def test_of_a_run_the_newest_words_count_with_the_reward_of_what_they_are_on() -> None:
    run = story.launch()
    story.submit(run, [story.scored("a", rewards=(1.0, 0.0))], actor="api:t")
    group = ScoredGroup.objects.get(key="a")
    for verdict in ("reject", "accept"):  # the second takes the place of the first
        labels.say(group, user=somebody(), actor="user:a", verdict=verdict, rollout=0)
    labels.say(group, user=somebody(), actor="user:a", verdict="reject")
    labels.say(group, user=somebody(), actor="user:a", verdict="skip", rollout=1)
    found = calibration.of_run(run)
    assert (found.words, [(line.words, line.accepted, line.reward) for line in found.by_reward]) == (2, [(2, 1, 0.75)])
    assert [line.of for line in found.by_environment] == ["reverse_text"]


@pytest.mark.django_db
def test_the_environments_rewards_are_what_is_compared_with_people_whatever_they_gave_in_their_place() -> None:
    run = story.launch(environments=[{"name": "reverse_text", "review": {}}])
    story.submit(run, [story.scored("a", rewards=(1.0, 0.5))], actor="api:t")
    group = ScoredGroup.objects.get(key="a")
    for index in (0, 1):
        reviews.say(group, user=somebody(), actor="user:a", verdict="accept", rollout=index, score=0.0)
    labels.say(group, user=somebody(), actor="user:a", verdict="reject")
    group.refresh_from_db()
    assert group.reward_mean == 0.0
    found = calibration.of_run(run)
    assert [(line.words, line.reward) for line in found.by_reward] == [(3, 0.75)]
    assert calibration.words_where(run, **found.by_reward[0].where).count() == 3


@pytest.mark.django_db
def test_the_words_of_a_blind_queue_count_once_it_is_closed() -> None:
    run = story.launch()
    story.submit(run, [story.scored("a")], actor="api:t")
    queue = queues.create(run.project, name="q", actor="user:cy", is_blind=True)
    turn = turns.take(queue, somebody())
    assert turn is not None
    turns.answer(turn, user=somebody(), actor="user:a", verdict="reject")
    assert calibration.of_run(run).words == 0
    queues.close(queue)
    assert calibration.of_run(run).words == calibration.words_where(run).count() == 1
