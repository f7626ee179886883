"""search: the paragraphs say it, the tool finds them, and nobody knows it without."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from environments import registry
from environments.env import Environment
from environments.errors import InvalidArguments
from environments.types import Message, Problem, Split
from tests.environments.library_tools.playing import (
    CALL,
    check_splits,
    hostile,
    played,
    reward_of_solution,
    rollout_of,
    scored,
)
from tests.environments.rewards.replying import NO_LOOP_S

SMALL = {"paragraphs": 300}


def search(**args: object) -> Environment[Any]:
    return registry.load("search", SMALL | args)


def asking(name: str, **arguments: str) -> str:
    return f"{CALL}{name} {json.dumps(arguments)}"


def told(rollout: Any) -> list[str]:
    return [message.text for message in rollout.messages if message.role == "tool"]


@pytest.mark.parametrize("args", [{}, {"min_hops": 3, "max_hops": 3}])
def test_problems_are_the_same_every_time_and_splits_share_none(args: dict[str, Any]) -> None:
    check_splits("search", SMALL | args, 150)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_its_own_solutions_find_every_paragraph_and_earn_the_full_reward(hops: int) -> None:
    environment = search(min_hops=hops, max_hops=hops)
    for index in range(60):
        problem = environment.problem(Split.EVAL, index)
        solution = environment.solution(problem)
        assert solution is not None
        rollout = rollout_of(problem, *solution[len(problem.messages) :])
        assert environment.reward(problem, rollout) == 1.0
        assert rollout.metrics == {"right": 1.0, "calls": float(hops), "found": 1.0}
        assert problem.data["answer"] in solution[-2].text
        # The question names where to begin, and neither what leads on nor the answer.
        assert problem.data["titles"][0] in problem.messages[1].text
        assert not any(title in problem.messages[1].text for title in problem.data["titles"][1:])


PROBLEM = Problem(
    key="gates",
    messages=[Message("user", "Who built the gates?")],
    data={"answer": "The Lantern Guild of Orlin", "titles": ["Gates"]},
)


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("<answer>The Lantern Guild of Orlin</answer>", 1.0),
        ("<answer>no</answer><answer> the lantern guild, of ORLIN. </answer>", 1.0),
        ("<answer>Lantern Guild of Orlin</answer>", 1.0),
        # F1 of 2 words that are right, of 4: 2 * 2 / (2 + 4).
        ("<answer>Lantern Guild</answer>", 0.3 * 4 / 6),
        ("<answer>the</answer>", 0.0),
        ("<answer>somebody</answer>", 0.0),
        ("<answer></answer>", 0.0),
        ("The Lantern Guild of Orlin", 0.0),
        ("<think><answer>The Lantern Guild of Orlin</answer></think>", 0.0),
    ],
)
def test_rewards(reply: str, reward: float) -> None:
    [rollout] = scored(search(), PROBLEM, reply)
    assert rollout.reward == pytest.approx(reward)
    assert rollout.metrics["right"] == float(reward == 1.0)


@pytest.mark.parametrize(
    ("answer", "said", "is_right"),
    [("63412", "63,412", True), ("A", "a", True), ("A", "the", False), ("the A", "an a", False), ("1,2", "12", False)],
)
def test_a_number_may_have_commas_and_an_answer_may_be_an_article(answer: str, said: str, is_right: bool) -> None:
    problem = Problem(key="x", messages=[], data={"answer": answer, "titles": []})
    [rollout] = scored(search(), problem, f"<answer>{said}</answer>")
    assert rollout.metrics["right"] == float(is_right)


def test_an_answer_that_lists_everything_earns_next_to_nothing() -> None:
    environment = search()
    trades = "painting teaching baking weaving poetry sailing botany carpentry surveying astronomy composing physic"
    years = " ".join(str(year) for year in range(1800, 1900))
    for index in range(60):
        problem = environment.problem(Split.TRAIN, index)
        for listed in (trades, years, f"{problem.messages[1].text} {trades} {years}"):
            [rollout] = scored(environment, problem, f"<answer>{listed}</answer>")
            assert rollout.reward is not None
            assert rollout.reward < 0.05, (problem.data, listed)


def test_the_tool_finds_paragraphs_and_reads_one() -> None:
    environment = search(max_calls=9)
    problem = next(each for n in range(99) if len((each := environment.problem(Split.TRAIN, n)).data["titles"]) == 2)
    first, second = problem.data["titles"]
    rollout = played(
        environment,
        problem,
        asking("search", query=f"who is {first}?"),
        asking("read", title=second),
        asking("read", title="Nowhere"),
        asking("search", query="zzz qqq"),
        asking("search", query=" "),
        asking("search", words="x"),
        f"{CALL}search {{",
        f"<answer>{problem.data['answer']}</answer>",
    )
    found, read, unknown, nothing, *broken = told(rollout)
    assert found.startswith(f"# {first}\n")
    assert 1 <= found.count("\n\n") + 1 <= 4
    assert read.startswith(f"# {second}\n")
    assert problem.data["answer"] in read
    assert unknown == "error: no paragraph has this title"
    assert nothing == "No paragraph has any of these words."
    assert all(each.startswith("error: call search") for each in broken)
    assert len(broken) == 3
    assert (rollout.reward, rollout.metrics["found"]) == (1.0, 1.0)


def test_a_title_that_another_begins_with_is_not_found_by_it() -> None:
    rollout = rollout_of(PROBLEM, Message("assistant", "x"))
    rollout.messages = [
        *PROBLEM.messages,
        *registry.load("search", SMALL).solution(Problem(key="x", messages=[], data={"answer": "x", "titles": ["x"]}))[
            :1
        ],
        Message("tool", "# Gatesmouth\nIt is a town.", tool_call_id="call_1"),
        Message("assistant", "<answer>no</answer>"),
    ]
    search().reward(PROBLEM, rollout)
    assert (rollout.metrics["calls"], rollout.metrics["found"]) == (1.0, 0.0)


def test_calls_beyond_the_last_are_not_answered() -> None:
    environment = search(max_calls=1)
    problem = environment.problem(Split.TRAIN, 0)
    query = asking("search", query=problem.data["titles"][0])
    rollout = played(environment, problem, f"{query}\n{query}", query, "never asked")
    assert told(rollout)[1] == "error: no call is left"
    assert len(told(rollout)) == 2


def test_paragraphs_and_questions_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows: list[dict[str, Any]] = [{"title": f"Hall {n}", "text": f"Hall {n} has {n * 7} doors."} for n in range(40)]
    rows += [
        {"question": f"How many doors has hall {n}?", "answer": n * 7, "titles": [f"Hall {n}"]} for n in range(1, 40)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    environment = search(data=str(path))
    assert sum(environment.count(split) for split in Split) == 39
    problem = environment.problem(Split.EVAL, 0)
    assert reward_of_solution(environment, problem) == 1.0
    rollout = played(environment, problem, asking("search", query=problem.messages[1].text), "<answer>x</answer>")
    assert rollout.metrics["found"] == 1.0


def test_questions_that_the_files_hold_out_are_never_trained_on(tmp_path: Path) -> None:
    def write(name: str, rows: list[dict[str, Any]]) -> None:
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def posed(environment: Environment[Any], split: Split) -> set[str]:
        return {environment.problem(split, index).messages[1].text for index in range(environment.count(split))}

    asked = [
        {"question": f"How many doors has hall {n}?", "answer": n * 7, "titles": [f"Hall {n}"]} for n in range(1, 9)
    ]
    write("halls", [{"title": f"Hall {n}", "text": f"Hall {n} has {n * 7} doors."} for n in range(40)])
    write("test", asked[:4])
    with pytest.raises(InvalidArguments, match=r"nothing to train on, only test: .* name one of its files"):
        search(data=str(tmp_path)).count(Split.TRAIN)
    write("train", asked[3:])
    environment = search(data=str(tmp_path))
    assert posed(environment, Split.EVAL) == {str(row["question"]) for row in asked[:4]}
    assert posed(environment, Split.TRAIN) == {str(row["question"]) for row in asked[4:]}
    assert reward_of_solution(environment, environment.problem(Split.EVAL, 0)) == 1.0


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"title": "x"}, "row 1: it needs a title and a text, or a question and an answer"),
        ({"question": "x", "answer": "?"}, "row 1: it needs a title and a text, or a question and an answer"),
        ({"question": "x", "answer": "y"}, "no paragraph"),
        ({"title": "x", "text": "y"}, "no question"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_a_reason(tmp_path: Path, row: dict[str, str], reason: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(InvalidArguments, match=reason):
        search(data=str(path))


@hostile
def test_nonsense_is_worth_nothing_and_costs_nothing(reply: str) -> None:
    environment = search()
    problem = environment.problem(Split.TRAIN, 0)
    began = time.monotonic()
    assert environment.reward(problem, rollout_of(problem, Message("assistant", reply))) == 0.0
    assert time.monotonic() - began < NO_LOOP_S


def test_a_query_without_end_costs_nothing() -> None:
    environment = search()
    problem = environment.problem(Split.TRAIN, 0)
    played(environment, problem, asking("search", query="warm up"), "done")
    began = time.monotonic()
    rollout = played(environment, problem, asking("search", query="the river " * 8_000), "done")
    assert time.monotonic() - began < 5
    assert len(told(rollout)) == 1


def test_bad_arguments_are_refused_by_name() -> None:
    with pytest.raises(InvalidArguments, match="min_hops"):
        search(min_hops=3)
