"""Programming problems of a file, one a row, in the layouts that data sets have.

| layout | columns |
|---|---|
| plain | `prompt`, `tests` (assertions, a list or a text) or `pairs` (of an input and its output), maybe `starter` |
| MBPP | `prompt` or `text`, `test_list`, maybe `code` |
| HumanEval | `prompt`, `entry_point`, `test` (a function `check`), maybe `canonical_solution` |
| APPS | `question`, `input_output` (JSON: `inputs`, `outputs`, maybe `fn_name`), maybe `starter_code`, `solutions` |
"""

import json
from typing import Any

from environments.library.code import apps
from environments.library.splits import digest
from environments.rewards.judged_code import assertions as code_tests
from environments.types import JsonObject

_CANDIDATE = "candidate"
"""What HumanEval's tests call the function."""
_SHOWN_TESTS = 1
"""MBPP's descriptions leave the function's name to the first test."""


class CodeRow:
    """A problem: what is asked, how it is tested, and a solution where the row has one."""

    def __init__(self, row: JsonObject) -> None:
        """Raises ValueError, which says what the row lacks."""
        self.words = str(row.get("prompt") or row.get("text") or row.get("question") or "").strip()
        if not self.words:
            raise ValueError("it has no prompt, text or question")
        self.starter = str(row.get("starter") or row.get("starter_code") or "").strip()
        self.key = str(row.get("task_id") or row.get("key") or row.get("id") or digest(self.words)[:16])
        self.solution = _solution(row)
        self.data = {"imported": apps.TYPING} | _tested(row)
        if row.get("test_list"):
            shown = "\n".join(self.data["tests"][:_SHOWN_TESTS])
            self.words += f"\n\nIt is tested like this:\n{shown}"
        for source in self.data.get("tests", ()):
            code_tests.Assertion(source, set(self.data["functions"]))


def _tested(row: JsonObject) -> JsonObject:
    """`pairs`, or `tests` and the `functions` that they call."""
    if row.get("pairs"):
        return {"pairs": [_pair(pair) for pair in row["pairs"]]}
    if row.get("input_output"):
        found = apps.tested(row["input_output"])
        return found if "tests" in found else found | {"pairs": [_pair(pair) for pair in found["pairs"]]}
    given = row.get("tests") or row.get("test_list") or row.get("test")
    if not given:
        raise ValueError("it has no tests, test_list, test, pairs or input_output")
    text = "\n".join(map(str, given)) if isinstance(given, list) else str(given)
    tests = code_tests.split(text)
    if not tests:
        raise ValueError("its tests assert nothing")
    if entry := row.get("entry_point"):
        tests = [test.replace(f"{_CANDIDATE}(", f"{entry}(") for test in tests]
    functions = {str(entry)} if entry else code_tests.functions_in(tests, text)
    return {"tests": tests, "functions": sorted(functions)}


def _pair(told: Any) -> list[str]:
    pair = [told.get("input"), told.get("output")] if isinstance(told, dict) else list(told)
    texts = [each for each in pair if isinstance(each, str)]
    if not len(pair) == len(texts) == 2:
        raise ValueError("each of its pairs needs an input and an output, both texts")
    return texts


def _solution(row: JsonObject) -> str:
    if row.get("canonical_solution"):
        return f"{row['prompt']}{row['canonical_solution']}"
    solutions = row.get("solutions") or [row.get("solution") or row.get("code") or ""]
    return str((json.loads(solutions) if isinstance(solutions, str) else solutions)[0])
