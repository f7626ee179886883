"""Programming problems of files: the layouts that data sets have, and what is wrong with a row."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from environments import registry
from environments.env import Environment
from environments.errors import InvalidArguments
from environments.types import Problem, Split
from tests.environments.library_tools.playing import reward_of, reward_of_solution
from tests.environments.sandbox.programs import needs_sandbox

PLAIN = {
    "prompt": "Add a and b.",
    "tests": ["assert add(1, 2) == 3", "assert add(0, 5) == 5"],
    "starter": "def add(a, b):",
}
MBPP = {
    "task_id": 7,
    "text": "Write a function to add two numbers.",
    "code": "def plus(a, b):\n    return a + b",
    "test_list": ["assert plus(1, 2) == 3", "assert plus(2, 2) == 4"],
}
HUMAN_EVAL = {
    "task_id": "Ours/1",
    "prompt": 'def add(a, b):\n    """Add a and b."""\n',
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(4, 2) == 6\n",
}
APPS = {
    "question": "Print the sum of the numbers in the line.",
    "input_output": json.dumps({"inputs": ["1 2\n", "3 4 5\n"], "outputs": ["3\n", "12"]}),
    "solutions": json.dumps(["print(sum(map(int, input().split())))"]),
}
APPS_FUNCTION = {
    "question": "Return the sum.",
    "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2], [5, 5]], "outputs": [3, 10]}),
    "starter_code": "def add(a, b):",
    "solutions": json.dumps(["def add(a, b):\n    return a + b"]),
}
APPS_METHOD = {
    "question": "Give both in order.",
    "input_output": json.dumps({"fn_name": "order", "inputs": [[2, 1], [3, 5]], "outputs": [[[1, 2]], [[3, 5]]]}),
    "starter_code": "class Solution:\n    def order(self, a: int, b: int) -> List[int]:",
    "solutions": json.dumps(
        ["class Solution:\n    def order(self, a: int, b: int) -> List[int]:\n        return sorted((a, b))"]
    ),
}


def written(directory: Path, *rows: dict[str, Any]) -> str:
    """A file in which both splits have problems: the rows and some more."""
    more = [PLAIN | {"prompt": f"Add a and b, number {number}."} for number in range(30)]
    path = directory / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n\n" for row in [*rows, *more]))
    return str(path)


def of_row(directory: Path, row: dict[str, Any], words: str) -> tuple[Environment[Any], Problem]:
    environment: Environment[Any] = registry.load("code", {"data": written(directory, row)})
    problems = [environment.problem(split, n) for split in Split for n in range(environment.count(split))]
    [problem] = [each for each in problems if words in each.messages[1].text]
    return environment, problem


@needs_sandbox
@pytest.mark.parametrize(
    ("row", "words"),
    [
        (MBPP, "to add two numbers.\n\nIt is tested like this:\nassert plus(1, 2) == 3"),
        (HUMAN_EVAL, '"""Add a and b."""'),
        (APPS, "in the line.\n\nYour program reads its input from stdin and prints its output."),
        (APPS_FUNCTION, "Return the sum.\n\nBegin with this:\n```python\ndef add(a, b):\n```"),
        (APPS_METHOD, "Give both in order.\n\nBegin with this:\n```python\nclass Solution:"),
    ],
    ids=["MBPP", "HumanEval", "APPS", "APPS with a function", "APPS with a method"],
)
def test_each_layout_is_read_and_its_own_solution_passes(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    environment, problem = of_row(tmp_path, row, words)
    assert reward_of_solution(environment, problem) == 1.0
    assert reward_of(environment, problem, "```python\nprint(3)\ndef plus(a, b):\n    return 3\nadd = plus\n```") == 0.0


@needs_sandbox
@pytest.mark.parametrize(
    ("source", "reward"),
    [
        ("def order(a, b):\n    return min(a, b), max(a, b)", 1.0),  # JSON has no tuples
        ("def order(a, b):\n    return [list(sorted((a, b)))]", 1.0),
        ("class Solution:\n    def order(self, a, b):\n        heappush(h := [a], b)\n        return h", 1.0),
        ("class Solution:\n    def order(self, a, b):\n        return [b, a]", 0.0),
        ("class Solution:\n    def order(self, a, b):\n        return [1, 2]", 0.0),
        ("class Solution:\n    def order(self, a, b):\n        return {a, b}", 0.0),
        ("class Solution:\n    def sort(self, a, b):\n        return sorted((a, b))", 0.0),
    ],
)
def test_rows_of_apps_are_tested_as_its_own_harness_does(tmp_path: Path, source: str, reward: float) -> None:
    environment, problem = of_row(tmp_path, APPS_METHOD, "Give both in order.")
    assert reward_of(environment, problem, f"```python\n{source}\n```") == reward


def test_answers_of_apps_are_wrapped_where_all_of_them_are(tmp_path: Path) -> None:
    def tests(*outputs: object) -> Any:
        told = {"fn_name": "f", "inputs": [[n] for n, _ in enumerate(outputs)], "outputs": outputs}
        _, problem = of_row(tmp_path, {"question": "What?", "input_output": told}, "What?")
        return problem.data["tests"]

    assert tests([0], [5]) == ["assert f(0) in [[0], 0]", "assert f(1) in [[5], 5]"]
    assert tests([0], [5, 6]) == ["assert f(0) == [0]", "assert f(1) == [5, 6]"]
    assert tests([0], []) == ["assert f(0) == [0]", "assert f(1) == []"]


@needs_sandbox
def test_what_a_starter_names_of_typing_needs_no_import(tmp_path: Path) -> None:
    row = PLAIN | {"prompt": "Sum up.", "starter": "def add(a: Optional[int], b: int) -> int:"}
    environment, problem = of_row(tmp_path, row, "Sum up.")
    code = "from __future__ import annotations\ndef add(a: int, b: int):\n    return cast(int, a + b)"
    assert reward_of(environment, problem, f"```python\n{code}\n```") == 1.0


def test_a_row_without_a_solution_has_none(tmp_path: Path) -> None:
    environment, problem = of_row(tmp_path, PLAIN | {"prompt": "Sum up."}, "Sum up.")
    assert environment.solution(problem) is None


def test_parquet_is_read_as_json_lines_are(tmp_path: Path) -> None:
    lines = written(tmp_path, MBPP)
    rows = [json.loads(line) for line in Path(lines).read_text().splitlines() if line]
    columns = {name for row in rows for name in row}
    place = tmp_path / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows]), place)
    one = registry.load("code", {"data": lines})
    other = registry.load("code", {"data": str(place)})
    for split in Split:
        assert one.count(split) == other.count(split) > 0
    words = {each.problem(Split.TRAIN, 0).messages[1].text for each in (one, other)}
    assert len(words) == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"tests": ["assert f(1) == 1"]}, "no prompt"),
        ({"prompt": "x"}, "no tests"),
        ({"prompt": "x", "tests": ["assert f(open('x')) == 1"]}, "no plain value"),
        ({"prompt": "x", "tests": ["for n in [1]:\n    assert f(n) == 1"]}, "For"),
        ({"prompt": "x", "pairs": [["a"]]}, "an input and an output"),
        ({"prompt": "x", "input_output": "{}"}, "as many inputs as outputs"),
        ({"prompt": "x", "input_output": "{"}, ""),
        (
            {"prompt": "x", "input_output": {"fn_name": "f", "inputs": ["1"], "outputs": [1]}},
            "a list of arguments of f",
        ),
    ],
)
def test_a_row_that_cannot_be_used_is_named_or_left_out(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    path = written(tmp_path, row)
    with pytest.raises(InvalidArguments, match=f"row 1: .*{reason}"):
        registry.load("code", {"data": path})
    environment = registry.load("code", {"data": path, "skip_unusable": True})
    assert sum(environment.count(split) for split in Split) == 30


def test_a_key_that_two_rows_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (MBPP, MBPP | {"text": "Another one."})))
    with pytest.raises(InvalidArguments, match="row 2: another row has its key, 7"):
        registry.load("code", {"data": str(path)})


def split(directory: Path, **rows: Sequence[dict[str, Any]]) -> str:
    """A file for each split, of which each numbers its rows from 0."""
    for name, of_split in rows.items():
        numbered = [row | {"id": number} for number, row in enumerate(of_split)]
        (directory / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in numbered))
    return str(directory)


def numbered(first: int, last: int) -> list[dict[str, Any]]:
    return [PLAIN | {"prompt": f"Add a and b, number {number}."} for number in range(first, last)]


def posed(environment: Environment[Any], of: Split) -> set[str]:
    problems = [environment.problem(of, index) for index in range(environment.count(of))]
    assert len({problem.key for problem in problems}) == len(problems)
    return {problem.messages[1].text.partition("\n")[0] for problem in problems}


def test_what_the_files_of_a_data_set_hold_out_is_never_trained_on(tmp_path: Path) -> None:
    data = split(tmp_path, train=numbered(0, 20), test=numbered(18, 30), validation=numbered(30, 40))
    environment = registry.load("code", {"data": data})
    assert posed(environment, Split.EVAL) == {f"Add a and b, number {number}." for number in range(18, 30)}
    assert posed(environment, Split.TRAIN) == {f"Add a and b, number {number}." for number in range(18)}
    keys = [{environment.problem(of, n).key for n in range(environment.count(of))} for of in Split]
    assert not keys[0] & keys[1]


def test_a_data_set_of_a_test_split_alone_is_evaluated_on_and_its_file_is_divided(tmp_path: Path) -> None:
    data = split(tmp_path, test=numbered(0, 30))
    environment = registry.load("code", {"data": data})
    assert environment.count(Split.EVAL) == 30
    with pytest.raises(InvalidArguments, match=r"nothing to train on, only test: .* name one of its files"):
        environment.count(Split.TRAIN)
    assert all(registry.load("code", {"data": f"{data}/test.jsonl"}).count(of) for of in Split)


def test_a_data_set_of_a_train_split_alone_is_divided(tmp_path: Path) -> None:
    environment = registry.load("code", {"data": split(tmp_path, train=numbered(0, 30))})
    assert environment.count(Split.TRAIN) + environment.count(Split.EVAL) == 30
    assert not posed(environment, Split.TRAIN) & posed(environment, Split.EVAL)


@needs_sandbox
def test_code_for_rows_may_import_what_the_interpreter_has(tmp_path: Path) -> None:
    environment, problem = of_row(tmp_path, PLAIN | {"prompt": "Sum up."}, "Sum up.")
    code = "import msgspec\ndef add(a, b):\n    return msgspec.json.decode(str(a + b))"
    assert reward_of(environment, problem, f"```python\n{code}\n```") == 1.0


@needs_sandbox
def test_always_saying_true_is_worth_nothing(tmp_path: Path) -> None:
    tests = ["assert is_even(2)", "assert is_even(4) == True", "assert not is_even(1)", "assert is_even(5) is False"]
    environment, problem = of_row(tmp_path, {"prompt": "Is it even?", "tests": tests}, "Is it even?")
    always, nearly, right = (
        f"```\ndef is_even(n):\n    return {value}\n```" for value in ("True", "n != 1", "n % 2 == 0")
    )
    assert [reward_of(environment, problem, each) for each in (always, nearly, right)] == [0.0, 0.375, 1.0]
