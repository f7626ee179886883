"""alphabet_sort: lists that grow by turns, scored by how much of their order is right."""

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest

from environments import registry
from environments.errors import InvalidArguments
from environments.kit import played
from environments.library.alphabet_sort import AlphabetSort, similarity
from environments.types import Message, Problem, Split, StopReason
from tests.environments.library_games.games import mean, said, solved

TWO_TURNS = Problem(
    key="two",
    messages=[Message("user", "sort")],
    data={"by": "last", "turns": [["Ann Cole", "Zed Abel"], ["Bob Bach"]]},
)
FIRST, SECOND = ["Zed Abel", "Ann Cole"], ["Zed Abel", "Bob Bach", "Ann Cole"]


def alphabet_sort(**args: object) -> AlphabetSort:
    environment = registry.load("alphabet_sort", args)
    assert isinstance(environment, AlphabetSort)
    return environment


def listed(names: list[str]) -> str:
    return "<sorted>\n{}\n</sorted>".format("\n".join(names))


def test_problems_are_the_same_in_every_process_and_version() -> None:
    environment = alphabet_sort()
    assert environment.problem(Split.TRAIN, 0).key == "first-512ac1226376df26"
    assert environment.problem(Split.TRAIN, 0).data["turns"][0] == [
        "Yaroranor Detack",
        "Balavala Devirt",
        "Penativin Davirt",
    ]
    assert environment.problem(Split.EVAL, 3) == alphabet_sort().problem(Split.EVAL, 3)


@pytest.mark.parametrize(
    ("replies", "similarities"),
    [
        ([listed(FIRST), listed(SECOND)], [1.0, 1.0]),
        (["I think <sorted>no</sorted>\n" + listed(FIRST), listed(SECOND) + " there"], [1.0, 1.0]),
        ([listed([f"  {name} " for name in FIRST]), listed(SECOND)], [1.0, 1.0]),
        # A common subsequence of one name of two: 2 * 1 / (2 + 2).
        ([listed(FIRST[::-1]), listed(SECOND)], [0.5, 1.0]),
        # Two of the three are in order, and nothing is missing: 2 * 2 / (3 + 3).
        ([listed(FIRST), listed(["Zed Abel", "Ann Cole", "Bob Bach"])], [1.0, 2 / 3]),
        ([listed(FIRST)], [1.0, 0.0]),
        ([listed(FIRST), listed(FIRST)], [1.0, 4 / 5]),
        (["\n".join(FIRST), listed(SECOND)], [0.0, 1.0]),
        ([f"<think>{listed(FIRST)}</think>", listed(SECOND)], [0.0, 1.0]),
        ([f"<think>{listed(FIRST)}", listed(SECOND)], [0.0, 1.0]),
        (["", "<sorted>\n\n</sorted>"], [0.0, 0.0]),
    ],
)
def test_the_reward_is_the_mean_over_turns_of_a_power_of_the_similarity(
    replies: list[str], similarities: list[float]
) -> None:
    rollout = said(TWO_TURNS, *replies)
    expected = sum(each**4 for each in similarities) / 2
    assert alphabet_sort().reward(TWO_TURNS, rollout) == pytest.approx(expected)
    assert rollout.metrics["similarity"] == pytest.approx(sum(similarities) / 2)
    assert rollout.metrics["exact"] == similarities.count(1.0) / 2


def test_a_power_of_one_pays_the_similarity_itself() -> None:
    rollout = said(TWO_TURNS, listed(FIRST[::-1]), listed(SECOND))
    assert alphabet_sort(power=1).reward(TWO_TURNS, rollout) == pytest.approx(0.75)


@pytest.mark.parametrize(
    "found",
    [FIRST * 50, SECOND + ["more"] * 100, SECOND[::-1] * 3, ["more", *SECOND], [name.lower() for name in SECOND]],
)
def test_no_other_list_is_fully_similar(found: list[str]) -> None:
    assert similarity(SECOND, found) < 1.0


def test_names_said_twice_do_not_count_twice() -> None:
    assert similarity(SECOND, ["Zed Abel", "Zed Abel", "Bob Bach", "Ann Cole"]) == pytest.approx(6 / 7)


def test_an_episode_tells_the_names_of_each_turn_and_ends_behind_the_last() -> None:
    environment = alphabet_sort(min_turns=3, max_turns=3)
    problem = environment.problem(Split.TRAIN, 4)
    rollout = asyncio.run(played(environment, problem, solved(environment, problem)))
    assert (rollout.reward, rollout.stop_reason) == (1.0, StopReason.STOP)
    told = [message.text for message in rollout.messages if message.role == "user"]
    assert len(told) == 3
    for names, text in zip(problem.data["turns"], told, strict=True):
        assert text.splitlines()[-len(names) :] == names


def test_arguments_decide_how_many_turns_and_names_there_are() -> None:
    environment = alphabet_sort(min_turns=2, max_turns=4, min_names=2, max_names=6)
    found = [environment.problem(Split.TRAIN, index).data["turns"] for index in range(200)]
    assert {len(turns) for turns in found} == {2, 3, 4}
    assert {len(names) for turns in found for names in turns} == {2, 3, 4, 5, 6}


def test_no_two_names_of_an_episode_share_a_part() -> None:
    environment = alphabet_sort(min_turns=20, max_turns=20, min_names=20, max_names=20)
    [*turns] = environment.problem(Split.TRAIN, 0).data["turns"]
    parts = [part for names in turns for name in names for part in name.split(" ")]
    assert len(parts) == len(set(parts)) == 800


@pytest.mark.parametrize("args", [{"min_turns": 4}, {"min_names": 6}])
def test_bounds_that_cross_are_named(args: dict[str, object]) -> None:
    with pytest.raises(InvalidArguments, match=f"{next(iter(args))} . is above max_"):
        alphabet_sort(**args)


def test_players_earn_what_the_card_says() -> None:
    environment = alphabet_sort()
    rng = random.Random("games")

    def ordering(order: Callable[[list[str]], list[str]]) -> Callable[[Problem], list[str]]:
        def replies(problem: Problem) -> list[str]:
            known = itertools.accumulate(problem.data["turns"])
            return [listed(order(names)) for names in known]

        return replies

    assert mean(environment, 300, lambda problem: solved(environment, problem)) == 1.0
    assert mean(environment, 300, ordering(lambda names: rng.sample(names, len(names)))) == pytest.approx(
        0.15, abs=0.04
    )
    assert mean(environment, 300, ordering(sorted)) == pytest.approx(0.56, abs=0.06)
