"""choices: MMLU, MMLU-Pro and ARC in their forms, scored by the letter."""

import json
from collections import Counter
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import pytest

from environments import solutions
from environments.errors import InvalidArguments
from environments.types import Problem, Split
from tests.environments.library_data.tables import asked, loaded, problems, score, solved, write
from tests.environments.rewards.replying import HOSTILE
from trainers.data.examples import Conversation, parse_example


def row(number: int, subject: str = "astronomy") -> dict[str, Any]:
    choices = [f"{number + add} moons" for add in range(4)]
    return {
        "question": f"How many moons has planet {number}?",
        "subject": subject,
        "choices": choices,
        "answer": number % 4,
    }


def right(number: int) -> str:
    return f"{number + number % 4} moons"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """As `cais/mmlu` lies on the hub: a config per subject and one of all, four splits."""
    for config, subjects in (("all", ["astronomy", "virology"]), ("astronomy", ["astronomy"])):
        for at, split in enumerate(["auxiliary_train", "dev", "validation", "test"]):
            rows = [
                row(1000 * at + 100 * place + number, subject)
                for place, subject in enumerate(subjects)
                for number in range(40)
            ]
            write(tmp_path / config / f"{split}-00000-of-00001.parquet", rows)
    return tmp_path


def number_of(problem: Problem) -> int:
    return int(problem.data["question"].split()[-1].rstrip("?"))


def lines(problem: Problem) -> dict[str, str]:
    """The choices as the last message shows them."""
    shown = problem.messages[-1].text.split("\n\n")[0].splitlines()[1:]
    return dict(line.split(". ", 1) for line in shown)


def test_the_right_letter_stands_before_the_right_choice(data: Path) -> None:
    environment = loaded("choices", data)
    assert [environment.count(split) for split in Split] == [80, 80]
    for problem in problems(environment, Split.EVAL):
        assert number_of(problem) >= 3000
        assert lines(problem)[problem.data["answer"]] == right(number_of(problem))
        assert sorted(lines(problem).values()) == sorted(row(number_of(problem))["choices"])


def test_choices_are_shuffled_evenly_and_the_same_way_every_time(data: Path) -> None:
    environment = loaded("choices", data)
    letters = Counter(problem.data["answer"] for split in Split for problem in problems(environment, split))
    assert set(letters) == set("ABCD")
    assert min(letters.values()) > 20
    again = loaded("choices", data, seed=7)
    assert {problem.key: lines(problem) for problem in problems(again, Split.EVAL)} == {
        problem.key: lines(problem) for problem in problems(environment, Split.EVAL)
    }


def test_choices_stay_as_they_are_without_shuffling(data: Path) -> None:
    for problem in problems(loaded("choices", data, shuffle=False), Split.EVAL):
        assert list(lines(problem).values()) == row(number_of(problem))["choices"]


@pytest.mark.parametrize(
    "last", ["None of the above", "all of these", "Both A and C", "Neither of the two", "B or C", "The one above"]
)
def test_a_choice_that_points_at_others_keeps_its_place(tmp_path: Path, last: str) -> None:
    rows = [{"question": f"{n}?", "choices": ["x", "y", "z", last], "answer": 3} for n in range(20)]
    write(tmp_path / "test.jsonl", rows)
    for problem in problems(loaded("choices", tmp_path), Split.EVAL):
        assert lines(problem) == {"A": "x", "B": "y", "C": "z", "D": last}


def test_rewards(data: Path) -> None:
    environment = loaded("choices", data)
    for problem in problems(environment, Split.EVAL)[:10]:
        letter = problem.data["answer"]
        other = "B" if letter == "A" else "A"
        assert solved(environment, problem) == 1.0
        assert score(environment, problem, f"It is ({letter}).") == 1.0
        assert score(environment, problem, rf"<think>\boxed{{{letter}}}</think>\boxed{{{other}}}") == 0.0
        assert score(environment, problem, "A, B, C or D") == 0.0
        assert score(environment, problem, problem.messages[-1].text) == 0.0


def test_always_the_same_letter_scores_its_share(data: Path) -> None:
    environment = loaded("choices", data)
    found = [score(environment, problem, "C") for problem in problems(environment, Split.EVAL)]
    assert 0.1 < sum(found) / len(found) < 0.4


@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_nonsense_scores_nothing(data: Path, reply: str) -> None:
    environment = loaded("choices", data)
    assert score(environment, environment.problem(Split.EVAL, 0), reply) == 0.0


def test_examples_are_of_the_subject_and_come_from_the_dev_split(data: Path) -> None:
    environment = loaded("choices", data, few_shot=5, system="Choose.")
    problem = environment.problem(Split.EVAL, 0)
    assert [message.role for message in problem.messages] == ["system", *["user", "assistant"] * 5, "user"]
    shown = [message.text for message in problem.messages[1::2]]
    assert len(set(shown)) == 6
    subject = number_of(problem) % 1000 // 100
    for text, said in zip(shown[:-1], problem.messages[2::2], strict=True):
        number = int(text.split("?")[0].split()[-1])
        assert 1000 <= number < 2000
        assert number % 1000 // 100 == subject
        assert f"{said.text[-2]}. {right(number)}" in text
    assert problem == loaded("choices", data, few_shot=5, system="Choose.").problem(Split.EVAL, 0)
    assert solved(environment, problem) == 1.0


def test_of_a_solution_behind_examples_the_last_turn_alone_is_trained(data: Path) -> None:
    [plain] = solutions.solved("choices", {"data": str(data)}, 1)
    assert [message["role"] for message in plain["messages"]] == ["user", "assistant"]
    for line in solutions.solved("choices", {"data": str(data), "few_shot": 3}, 4, echo=0.5):
        assert [message["role"] for message in line["prompt"]] == [*["user", "assistant"] * 3, "user"]
        assert [message["role"] for message in line["completion"]] == ["assistant"]
        parsed = parse_example(json.dumps(line).encode(), "line", ["assistant"])
        assert isinstance(parsed, Conversation)
        assert parsed.prompt_messages == len(line["prompt"])


def test_examples_from_the_training_split_are_never_the_question_itself(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [row(number) for number in range(6)])
    write(tmp_path / "test.jsonl", [row(number) for number in range(4, 9)])
    environment = loaded("choices", tmp_path, few_shot=3)
    held_out = asked(environment, Split.EVAL)
    for split in Split:
        for problem in problems(environment, split):
            shown = [message.text for message in problem.messages if message.role == "user"]
            assert len(set(shown)) == len(shown) == 4
            assert not held_out & set(shown[:-1])


def test_subjects_choose_and_an_unknown_one_is_refused(data: Path) -> None:
    environment = loaded("choices", data, subjects=["Virology"])
    assert {problem.data["subject"] for problem in problems(environment, Split.EVAL)} == {"virology"}
    with pytest.raises(InvalidArguments, match="subjects: no row is of law; there are astronomy, virology"):
        loaded("choices", data, subjects=["law"])


def test_arc_calls_its_choices_by_labels_of_its_own(tmp_path: Path) -> None:
    rows = [
        {"question": "1?", "choices": {"text": ["w", "x", "y", "z"], "label": ["1", "2", "3", "4"]}, "answerKey": "2"},
        {"question": "2?", "choices": {"text": ["w", "x", "y"], "label": ["A", "B", "C"]}, "answerKey": "B"},
        {"question": "3?", "choices": {"text": ["v", "x", "w", "y", "z"], "label": list("ABCDE")}, "answerKey": "B"},
    ]
    write(tmp_path / "ARC-Easy" / "test-00000-of-00001.parquet", rows)
    environment = loaded("choices", tmp_path)
    for problem in problems(environment, Split.EVAL):
        assert lines(problem)[problem.data["answer"]] == "x"
        assert solved(environment, problem) == 1.0


def test_ten_choices_have_ten_letters(tmp_path: Path) -> None:
    rows = [
        {
            "question": f"{number}?",
            "options": [f"{number}{letter}" for letter in "abcdefghij"],
            "answer": ascii_uppercase[number % 10],
            "answer_index": number % 10,
            "category": "law",
        }
        for number in range(30)
    ]
    write(tmp_path / "data" / "test-00000-of-00001.parquet", rows)
    environment = loaded("choices", tmp_path)
    found = problems(environment, Split.EVAL)
    assert {problem.data["answer"] for problem in found} - set("ABCD")
    assert all(solved(environment, problem) == 1.0 for problem in found)


@pytest.mark.parametrize(
    ("answer", "choices", "place"),
    [
        (2, ["p", "q", "r"], 2),
        ("C", ["p", "q", "r"], 2),
        ("r", ["p", "q", "r"], 2),
        ("2", ["p", "q", "r"], 2),
        ("2", ["1", "2", "3"], 1),
        (2, ["1", "2", "3"], 2),
    ],
)
def test_the_answer_may_be_an_index_a_letter_or_a_text(
    tmp_path: Path, answer: int | str, choices: list[str], place: int
) -> None:
    write(tmp_path / "test.jsonl", [{"ctx": "?", "endings": choices, "key": answer}])
    columns = {"question_column": "ctx", "choices_column": "endings", "answer_column": "key"}
    environment = loaded("choices", tmp_path, **columns, shuffle=False)
    assert environment.problem(Split.EVAL, 0).data["answer"] == ascii_uppercase[place]


@pytest.mark.parametrize(
    "bad",
    [
        {"answer": 4},
        {"answer": -1},
        {"answer": "E"},
        {"answer": None},
        {"answer": True},
        {"choices": ["x"]},
        {"choices": ["x", "x", "y", "z"]},
        {"choices": ["x", "", "y", "z"]},
        {"choices": "x, y"},
        {"choices": [["x"], ["y"]]},
        {"question": ""},
    ],
)
def test_rows_that_are_no_question_are_left_out(tmp_path: Path, bad: dict[str, Any]) -> None:
    write(tmp_path / "test.jsonl", [row(1), row(2), row(3), row(4) | bad])
    assert loaded("choices", tmp_path).count(Split.EVAL) == 3


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", [{"question": "?", "options": ["x", "y"]}])
    with pytest.raises(InvalidArguments, match="has no column answer; it has question, options"):
        loaded("choices", tmp_path)
