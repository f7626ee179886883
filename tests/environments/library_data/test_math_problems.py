"""math: problems of MATH and of MATH-500, scored by the formula in the box."""

import json
from pathlib import Path
from typing import Any

import pytest

from environments.errors import InvalidArguments
from environments.types import Split
from tests.environments.library_data.tables import loaded, problems, score, solved, write
from tests.environments.rewards.replying import HOSTILE


def row(number: int, subject: str = "Algebra", level: str = "Level 3") -> dict[str, Any]:
    solution = rf"We have $x = {number}$ twice, so the answer is $\boxed{{\frac{{{number}}}{{97}}}}$."
    return {"problem": f"What is ${number} / 97$?", "level": level, "type": subject, "solution": solution}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory per subject, as `EleutherAI/hendrycks_math` lies on the hub."""
    for at, subject in enumerate(["Algebra", "Number Theory", "Counting & Probability"]):
        folder = tmp_path / subject.lower().replace(" & ", "_and_").replace(" ", "_")
        rows = [row(100 * at + number, subject, f"Level {1 + number % 5}") for number in range(1, 21)]
        write(folder / "train-00000-of-00001.parquet", rows)
        write(folder / "test-00000-of-00001.parquet", [row(100 * at + 50, subject, "Level ?")])
    return tmp_path


def test_all_subjects_are_taken_together(data: Path) -> None:
    environment = loaded("math", data)
    assert [environment.count(split) for split in Split] == [60, 3]
    assert {problem.data["subject"] for problem in problems(environment, Split.EVAL)} == {
        "Algebra",
        "Number Theory",
        "Counting & Probability",
    }
    assert {problem.data["level"] for problem in problems(environment, Split.EVAL)} == {None}


def test_the_answer_is_what_stands_in_the_box(data: Path) -> None:
    environment = loaded("math", data, config="algebra")
    [problem] = problems(environment, Split.EVAL)
    assert problem.data["answer"] == r"\frac{50}{97}"
    assert solved(environment, problem) == 1.0
    assert score(environment, problem, r"\boxed{50/97}") == 1.0
    assert score(environment, problem, r"\boxed{\frac{51}{97}}") == 0.0
    assert score(environment, problem, problem.messages[0].text) == 0.0


@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_nonsense_scores_nothing(data: Path, reply: str) -> None:
    environment = loaded("math", data)
    assert score(environment, environment.problem(Split.EVAL, 0), reply) == 0.0


def test_levels_and_subjects_choose(data: Path) -> None:
    hard = loaded("math", data, levels=[4, 5])
    assert hard.count(Split.TRAIN) == 24
    assert {problem.data["level"] for problem in problems(hard, Split.TRAIN)} == {4, 5}
    some = loaded("math", data, subjects=["number_theory", "Counting & probability"], levels=[1])
    assert some.count(Split.TRAIN) == 8
    assert "Algebra" not in {problem.data["subject"] for problem in problems(some, Split.TRAIN)}


@pytest.mark.parametrize("subjects", [["geometry"], ["algebra", "geometry"]])
def test_a_subject_that_no_problem_has_is_refused_with_those_that_are_there(data: Path, subjects: list[str]) -> None:
    known = "Algebra, Counting & Probability, Number Theory"
    with pytest.raises(InvalidArguments, match=f"subjects: no row is of geometry; there are {known}"):
        loaded("math", data, subjects=subjects)


def test_a_level_that_no_problem_has_is_refused(data: Path) -> None:
    with pytest.raises(InvalidArguments, match="has no row that these arguments ask for"):
        loaded("math", data, levels=[9])


def test_math_500_has_answers_and_no_split_to_train_on(tmp_path: Path) -> None:
    rows = [
        {
            "problem": f"How much is {number} squared?",
            "solution": "Multiply.",
            "answer": f"{number * number}",
            "subject": "Prealgebra",
            "level": 1 + number % 5,
            "unique_id": f"test/prealgebra/{number}.json",
        }
        for number in range(10)
    ]
    write(tmp_path / "test.jsonl", rows)
    environment = loaded("math", tmp_path, subjects=["prealgebra"])
    assert environment.count(Split.EVAL) == 10
    for problem in problems(environment, Split.EVAL):
        assert solved(environment, problem) == 1.0


def test_the_first_form_of_math_is_a_file_per_problem(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number in range(5):
            path = tmp_path / split / "algebra" / f"{number}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(row(number + (10 if split == "test" else 0)), indent=4))
    environment = loaded("math", tmp_path)
    assert [environment.count(split) for split in Split] == [5, 5]


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"It is \boxed{3}, no, $\boxed{x^{2}+\sqrt{3}}$.", r"x^{2}+\sqrt{3}"),
        (r"So the answer is $\boxed 2$.", "2"),
        (r"The sum is \boxed{\text{(A)}}", r"\text{(A)}"),
    ],
)
def test_boxes_of_every_kind_are_read(tmp_path: Path, solution: str, answer: str) -> None:
    write(
        tmp_path / "test.jsonl", [{"problem": "How much?", "solution": solution, "level": "Level 1", "type": "Algebra"}]
    )
    [problem] = problems(loaded("math", tmp_path), Split.EVAL)
    assert problem.data["answer"] == answer


def test_problems_without_an_answer_are_left_out(tmp_path: Path) -> None:
    rows = [row(number) for number in range(1, 9)]
    write(tmp_path / "test.jsonl", [*rows, {"problem": "Prove it.", "solution": "Clear.", "level": "Level 5"}])
    assert loaded("math", tmp_path).count(Split.EVAL) == 8
