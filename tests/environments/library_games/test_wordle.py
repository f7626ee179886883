"""wordle: letters answered by the rules of the game, and a word scored by how soon it is found."""

import asyncio
import random

import pytest

from environments import registry
from environments.errors import InvalidArguments
from environments.kit import played
from environments.library.splits import is_held_out
from environments.library.wordle import Wordle, feedback
from environments.library.wordle_words import WORDS
from environments.types import Message, Problem, Split, StopReason
from tests.environments.library_games.games import mean, said, solved

APPLE = Problem(key="apple", messages=[Message("user", "guess")], data={"word": "apple"})


def wordle(**args: object) -> Wordle:
    environment = registry.load("wordle", args)
    assert isinstance(environment, Wordle)
    return environment


def guess(word: str) -> str:
    return f"<guess>{word}</guess>"


@pytest.mark.parametrize(
    ("word", "guessed", "told"),
    [
        ("apple", "apple", "GGGGG"),
        ("apple", "cloud", "XYXXX"),
        ("apple", "paper", "YYGYX"),
        # One p of the word is in its place, the other answers for the first p of the guess.
        ("apple", "puppy", "YXGXX"),
        # The word has one l: the one in its place has it, so the other is grey although it comes first.
        ("angel", "llama", "YXYXX"),
        ("angel", "level", "XXXGG"),
        ("abbey", "babes", "YYGGX"),
        ("speed", "erase", "YXXYY"),
        ("steel", "eerie", "YYXXX"),
        ("aabbb", "bbaaa", "YYYYX"),
    ],
)
def test_a_letter_of_the_word_answers_for_one_letter_of_the_guess(word: str, guessed: str, told: str) -> None:
    assert feedback(word, guessed) == told


@pytest.mark.parametrize(
    ("replies", "reward", "metrics"),
    [
        (["apple"], 1.0, (1, 1, 0)),
        (["cloud", "apple"], 0.95, (1, 2, 0)),
        (["cloud"] * 5 + ["apple"], 0.75, (1, 6, 0)),
        # Y Y G Y X of "paper": (1 + 3 / 2) / 5 of .25.
        (["cloud", "paper"], 0.125, (0, 2, 0)),
        (["ample"] * 6, 0.2, (0, 6, 0)),
        (["zzzzz", "hello!", "12345", "appl", "ÄPPLE", "a b c"], 0.0, (0, 6, 5)),
        (["cloud"] * 6 + ["apple"], 0.025, (0, 6, 0)),
        ([], 0.0, (0, 0, 0)),
    ],
)
def test_rewards(replies: list[str], reward: float, metrics: tuple[int, int, int]) -> None:
    rollout = said(APPLE, *map(guess, replies))
    assert wordle().reward(APPLE, rollout) == pytest.approx(reward)
    found = (rollout.metrics["solved"], rollout.metrics["guesses"], rollout.metrics["invalid_guesses"])
    assert found == metrics


@pytest.mark.parametrize(
    "reply",
    [
        "<guess> Apple\n</guess>",
        "it is <guess>paper</guess>, no: <guess>APPLE</guess>",
        "<think>?</think>" + guess("apple"),
    ],
)
def test_the_last_guess_behind_the_reasoning_counts(reply: str) -> None:
    assert wordle().reward(APPLE, said(APPLE, reply)) == 1.0


@pytest.mark.parametrize(
    "reply",
    [
        "apple",
        "<think><guess>apple</guess></think>",
        "<think><guess>apple</guess>",
        "<guess>apple",
        "</guess>apple<guess>",
    ],
)
def test_what_is_no_guess_solves_nothing(reply: str) -> None:
    assert wordle().reward(APPLE, said(APPLE, reply)) == 0.0


def test_an_episode_answers_each_guess_and_ends_with_the_word_or_the_last_guess() -> None:
    environment = wordle(max_guesses=3)
    lost = asyncio.run(played(environment, APPLE, [guess("paper"), "hm"]))
    assert [message.text for message in lost.messages[2::2]] == [
        "P A P E R\nY Y G Y X\nGuesses left: 2",
        "That is no guess: reply with <guess>word</guess>, a word of five letters.\nGuesses left: 1",
    ]
    assert lost.stop_reason is StopReason.STOP
    won = asyncio.run(played(environment, APPLE, [guess("paper"), guess("apple")]))
    assert (won.reward, won.stop_reason, len(won.messages)) == (0.95, StopReason.STOP, 4)


def test_only_listed_words_are_guesses_where_the_arguments_say_so() -> None:
    assert wordle().reward(APPLE, said(APPLE, guess("appls"))) == pytest.approx(0.2)
    listed = wordle(guesses="listed")
    assert listed.reward(APPLE, said(APPLE, guess("appls"))) == 0.0
    assert listed.reward(APPLE, said(APPLE, guess("paper"))) == pytest.approx(0.125)
    assert wordle().problem(Split.TRAIN, 0).messages != listed.problem(Split.TRAIN, 0).messages


def test_letters_of_an_unsolved_word_are_worth_what_the_arguments_say_and_never_more_than_a_solved_one() -> None:
    near = wordle(near=0.85, max_guesses=4)
    assert near.reward(APPLE, said(APPLE, *[guess("ample")] * 4)) == pytest.approx(0.68)
    assert near.reward(APPLE, said(APPLE, *[guess("ample")] * 3, guess("apple"))) == pytest.approx(0.85)
    with pytest.raises(InvalidArguments, match=r"near 0.9 is above the 0.85 that a word earns which guess 4 solves"):
        wordle(near=0.9, max_guesses=4)


def test_the_list_has_enough_words_of_five_letters_each_once() -> None:
    assert len(WORDS) == len(set(WORDS)) == 1_082
    assert all(len(word) == 5 and word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def test_each_word_is_in_one_split_and_its_problem_is_the_same_for_ever() -> None:
    environment = wordle()
    words = {
        split: [environment.problem(split, index).data["word"] for index in range(environment.count(split))]
        for split in Split
    }
    assert sorted(words[Split.TRAIN] + words[Split.EVAL]) == WORDS
    assert words[Split.TRAIN][:3] == ["latte", "brisk", "alibi"]
    assert environment.problem(Split.TRAIN, 0).key == "201c8cbbff58fbfa"


def test_solutions_of_training_guess_no_held_out_word() -> None:
    environment = wordle()
    for index in range(40):
        replies = solved(environment, environment.problem(Split.TRAIN, index))
        assert not [reply for reply in replies if is_held_out(reply.removeprefix("<guess>").removesuffix("</guess>"))]


def test_solutions_solve_however_few_guesses_there_are() -> None:
    environment = wordle(max_guesses=1)
    problem = environment.problem(Split.TRAIN, 0)
    assert environment.reward(problem, said(problem, *solved(environment, problem))) == 1.0


def test_players_earn_what_the_card_says() -> None:
    environment = wordle()
    rng = random.Random("games")
    assert mean(environment, 60, lambda problem: solved(environment, problem)) == pytest.approx(0.89, abs=0.03)
    guessing = mean(environment, 300, lambda problem: [guess(rng.choice(WORDS)) for _ in range(6)])
    assert guessing == pytest.approx(0.09, abs=0.02)
