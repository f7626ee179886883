"""The bridge to reasoning_gym, with the real library in a process of its own."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments import venvs
from environments.errors import RegistryError
from environments.types import Problem, Split
from tests.environments.bridges.games import Games

pytestmark = pytest.mark.slow  # processes of another virtual environment

NAME = "environments.bridges.reasoning_gym:ReasoningGym"
HOME = Path(__file__).parents[3] / ".venv-games"
SUM = {"id": "chain_sum", "options": {"min_terms": 2, "max_terms": 3}, "train_count": 300, "eval_count": 30}
COUNTDOWN = {"id": "countdown", "train_count": 300}


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Games]:
    try:
        python = venvs.find(HOME / venvs.DIRECTORY, "reasoning_gym")
    except venvs.VenvError:
        pytest.skip(f"needs reasoning_gym in {HOME.name}: run `make games-venv`")
    with asyncio.Runner() as runner:
        games = Games(runner, python, tmp_path_factory.mktemp("reasoning"))
        yield games
        games.close()


def the_sum(problem: Problem) -> str:
    [sentence] = [line for line in problem.messages[-1].text.splitlines() if "=" in line]
    asked = sentence.split(":")[-1].split("=")[0]
    return str(sum(int(sign + digits) for sign, digits in _terms(asked)))


def _terms(asked: str) -> Iterator[tuple[str, str]]:
    sign = "+"
    for word in asked.split():
        if word in "+-":
            sign = word
        else:
            yield sign, word


def spiral(problem: Problem) -> list[str]:
    lines = problem.messages[-1].text.splitlines()
    rows = [line.split() for line in lines[lines.index(next(line for line in lines if "matrix below" in line)) :]]
    rows = [row for row in rows if row and all(word.isdigit() for word in row)]
    turned: list[str] = []
    while rows:
        turned += rows.pop(0)
        rows = [list(column) for column in zip(*rows, strict=True)][::-1]
    return turned


def test_an_answer_earns_what_the_data_sets_scorer_gives_it(games: Games) -> None:
    [problem] = games.problems(NAME, SUM, [3], Split.TRAIN)
    right = the_sum(problem)
    played = games.play(
        NAME,
        SUM,
        [
            f"<think>1</think>so <answer>{right}</answer>",
            f"<think><answer>{right}</answer></think>",
            "<answer>x</answer>",
        ],
        n=3,
        index=3,
    )
    assert [rollout.reward for rollout in played.rollouts] == [1.0, 0.0, 0.0]
    assert [rollout.metrics["solved"] for rollout in played.rollouts] == [1.0, 0.0, 0.0]
    assert played.version.startswith("2+reasoning_gym-0.1.")
    assert played.problem.key.startswith("chain_sum:")


def test_problems_are_the_same_every_time_and_no_question_is_in_both_splits(games: Games) -> None:
    trained = games.problems(NAME, SUM, [*range(60), 0], Split.TRAIN)
    assert trained[0] == trained[-1]
    held_out = games.problems(NAME, SUM, range(10), Split.EVAL)
    assert {each.messages[-1].text for each in trained}.isdisjoint(each.messages[-1].text for each in held_out)
    assert not any(the_sum(each) in str(each.data) for each in trained if len(the_sum(each)) > 3)


@pytest.mark.parametrize("said", ["__import__('os').getpid()", "exec('x = 24')", "NaN", "(-Inf)"])
def test_what_would_run_code_or_is_no_number_is_not_scored(games: Games, said: str) -> None:
    [rollout] = games.play(NAME, COUNTDOWN, [f"<answer>{said}</answer>"]).rollouts
    assert (rollout.reward, rollout.metrics["unscored"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("n_queens", 'entry["metadata"]["valid_answers"]'),
        ("n_queens", '[_.split() for _ in entry["metadata"]["valid_answers"][0].split("\\n")]'),
        ("n_queens", '[(setattr)(self,"score_answer",(eval)("la"+"mbda answer,entry:1.0"))]'),
        ("binary_matrix", '[row.split() for row in oracle_answer.split("\\n")]'),
        ("spiral_matrix", "oracle_answer.split()"),
        ("string_insertion", "oracle_answer"),
        ("simple_integration", "integrate(2, x) + (exec)('import os; os.write(1, b\"{}\")')"),
    ],
)
def test_an_answer_is_not_run_however_it_is_written(games: Games, id: str, said: str) -> None:
    args = {"id": id, "train_count": 300}
    hostile, other = games.play(NAME, args, [f"<answer>{said}</answer>", "<answer>x</answer>"], n=2).rollouts
    assert (hostile.reward, other.reward) == (0.0, 0.0)


def test_a_list_is_read_where_the_scorer_takes_one(games: Games) -> None:
    args = {"id": "spiral_matrix", "train_count": 300}
    [problem] = games.problems(NAME, args, [0], Split.TRAIN)
    right = ", ".join(spiral(problem))
    played = games.play(NAME, args, [f"<answer>[{right}]</answer>"])
    assert [rollout.reward for rollout in played.rollouts] == [0.1]


def test_a_scorer_that_takes_too_long_ends_and_the_next_answer_is_scored(games: Games) -> None:
    began = time.monotonic()
    hung, other = games.play(NAME, COUNTDOWN, ["<answer>9**9**9**9</answer>", "<answer>1</answer>"], n=2).rollouts
    assert (hung.reward, hung.metrics["unscored"]) == (0.0, 1.0)
    assert other.metrics["unscored"] == 0.0
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"id": "nothing"}, "id 'nothing' is none of .*chain_sum"),
        ({"id": "composite"}, "id 'composite' is not played: name one of the data sets"),
        ({"id": "puzzle24"}, "full reward to other numbers"),
        (SUM | {"options": {"terms": 3}}, "options {'terms': 3} do not suit chain_sum: TypeError"),
        (SUM | {"options": {"min_terms": 0}}, "do not suit chain_sum: AssertionError"),
    ],
)
def test_arguments_that_cannot_be_played_are_named(games: Games, args: dict[str, object], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        games.load(NAME, args)
