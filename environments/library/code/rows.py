"""Programming problems of files, one a row, in the layouts that data sets have.

| layout | columns |
|---|---|
| plain | `prompt`, `tests` (assertions, a list or a text) or `pairs` (of an input and its output), maybe `starter` |
| MBPP | `prompt` or `text`, `test_list`, maybe `code` |
| HumanEval | `prompt`, `entry_point`, `test` (a function `check`), maybe `canonical_solution` |
| APPS | `question`, `input_output` (JSON: `inputs`, `outputs`, maybe `fn_name`), maybe `starter_code`, `solutions` |
"""

import json
from collections.abc import Set
from typing import Any, NamedTuple

from environments.library.code import apps
from environments.library.data.files import DataFiles
from environments.library.data.rows import Rows, read
from environments.library.splits import digest, is_held_out
from environments.rewards.judged_code import assertions as code_tests
from environments.types import JsonObject, Split

_CANDIDATE = "candidate"
"""What HumanEval's tests call the function."""
_SHOWN_TESTS = 1
"""MBPP's descriptions leave the function's name to the first test."""


class CodeRow:
    """A problem: what is asked, how it is tested, and a solution where the row has one."""

    def __init__(self, row: JsonObject, taken: Set[str] = frozenset()) -> None:
        """`taken`: keys that others have. Raises ValueError, which says what the row lacks."""
        self.words = str(row.get("prompt") or row.get("text") or row.get("question") or "").strip()
        if not self.words:
            raise ValueError("it has no prompt, text or question")
        self.starter = str(row.get("starter") or row.get("starter_code") or "").strip()
        named = str(row.get("task_id") or row.get("key") or row.get("id") or "")
        self.key = named if named and named not in taken else digest(self.words)[:16]
        self.solution = _solution(row)
        self.data = {"imported": apps.TYPING} | _tested(row)
        if row.get("test_list"):
            shown = "\n".join(self.data["tests"][:_SHOWN_TESTS])
            self.words += f"\n\nIt is tested like this:\n{shown}"
        for source in self.data.get("tests", ()):
            code_tests.Assertion(source, set(self.data["functions"]))


class _Asked(NamedTuple):
    """A row that is a problem."""

    number: int
    key: str
    words: str


class CodeRows:
    """The rows of a data set in their splits: as its files' names say it, else an eighth is held out, by its words."""

    def __init__(self, data: str, *, skip_unusable: bool) -> None:
        """Raises ValueError, which names the row and what is wrong with it, or what else the data set lacks."""
        self._files = DataFiles(data)
        self._skip_unusable = skip_unusable
        self._held_keys = frozenset[str]()
        train, held_out = self._files.sources()
        if not held_out:
            known = ", ".join(self._files.splits)
            raise ValueError(f"data {data} has neither a train nor a test split but {known}: name one of its files")
        self._rows = {Split.TRAIN: read(train) if train else Rows([]), Split.EVAL: read(held_out)}
        asked = self._usable(Split.EVAL)
        if train == held_out:
            parts = (
                [one for one in asked if not is_held_out(one.words)],
                [one for one in asked if is_held_out(one.words)],
            )
        else:
            held = {one.words for one in asked}
            self._held_keys = frozenset(one.key for one in asked)
            parts = [one for one in self._usable(Split.TRAIN) if one.words not in held], asked
        self._numbers = {split: [one.number for one in part] for split, part in zip(Split, parts, strict=True)}
        for split, numbers in self._numbers.items():
            if not numbers and (train or split is Split.EVAL):
                raise ValueError(f"data {data} has no problem for the {split} split: it needs more rows")

    def count(self, split: Split) -> int:
        """Of a split. Raises InvalidArguments where there is nothing to train on."""
        if not (found := len(self._numbers[split])):
            raise self._files.nothing_to_train_on("name one of its files, which is divided then")
        return found

    def row(self, split: Split, index: int) -> CodeRow:
        """Problem `index` of a split."""
        return self._read(split, self._rows[split][self._numbers[split][index]])

    def _read(self, split: Split, row: JsonObject) -> CodeRow:
        # Data sets count each split from 0: what is held out keeps its number.
        return CodeRow(row, taken=self._held_keys if split is Split.TRAIN else frozenset())

    def _usable(self, split: Split) -> list[_Asked]:
        found: dict[str, _Asked] = {}
        for number, told in enumerate(self._rows[split]):
            try:
                row = self._read(split, told)
                if row.key in found:
                    raise ValueError(f"another row has its key, {row.key}")
            except (ValueError, TypeError) as error:
                if self._skip_unusable:
                    continue
                where = f"data {self._files.data}, row {number + 1}" + (f" of {split}" if self._files.splits else "")
                raise ValueError(f"{where}: {error}; skip_unusable leaves such rows out") from error
            found[row.key] = _Asked(number, row.key, row.words)
        return list(found.values())


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
