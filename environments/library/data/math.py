r"""math: competition problems whose answer is a formula, in LaTeX."""

import re
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from environments.library.data.files import EVERY
from environments.library.data.sets import (
    DataSetArgs,
    DataSetEnvironment,
    Question,
    Subjects,
    Unusable,
    required,
    text_in,
)
from environments.rewards import replies
from environments.rewards.registry import RewardPart
from environments.types import JsonObject, Message, Problem

_SUBJECT_COLUMNS = ("type", "subject")
_DIGITS = re.compile(r"\d+")
_BARE = re.compile(r"\\boxed\s+([^\s$.,]+)")
r"""A box around the next word, without braces: `\boxed 2`."""


class MathArgs(DataSetArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of math."""

    levels: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(description="Only these levels, 1 to 5; none: all.")] = []
    subjects: Annotated[
        list[str], Meta(description="Only these subjects, such as algebra or number_theory; none: all.")
    ] = []


class Math(DataSetEnvironment[MathArgs]):
    r"""Competition mathematics with answers in closed form.

    Task: solve a problem written in LaTeX and give the answer in \boxed{}.
    Data: rows {problem, solution, level, type}, whose answer is the last box of the solution, or {problem, answer,
    subject, level, ...}. Made for MATH (Hendrycks et al. 2021, arXiv:2103.03874; 7,500 problems to train on, 5,000 held
    out; MIT licence), of which all subjects are taken together, and for MATH-500. Neither is part of Rollyard.
    Arguments: `levels`, `subjects`; `data`, `config`, `train_split`, `eval_split`, `system`, `instruction`, `seed`,
    `rewards`.
    Reward: `math`, 1 for an expression that equals the answer.
    Checked: on files of the same form; an answer in a box scores 1, another one and the problem itself 0.
    """

    name = "math"
    version = "4"
    args_type = MathArgs
    default_config = EVERY
    default_rewards = (RewardPart(name="math"),)
    default_instruction = r"Reason step by step, and put the final answer into \boxed{}."

    def __init__(self, args: MathArgs) -> None:
        self._subjects = Subjects(args.subjects)
        super().__init__(args)

    def check_found(self) -> None:
        self._subjects.check()
        super().check_found()

    def reads(self, columns: Sequence[str]) -> Sequence[str]:
        answer = "answer" if "answer" in columns else "solution"
        optional = [name for name in ("solution", "level", *_SUBJECT_COLUMNS) if name in columns and name != answer]
        return [*required(self.args.data, columns, "problem", answer), *optional]

    def question(self, row: JsonObject) -> Question | None:
        subject = next((row[column] for column in _SUBJECT_COLUMNS if isinstance(row.get(column), str)), "")
        level = _level(row.get("level"))
        if not self._subjects.wants(subject) or (self.args.levels and level not in self.args.levels):
            return None
        solution = row.get("solution")
        worked = solution.strip() if isinstance(solution, str) else ""
        data = {"answer": _answer(row, worked), "worked": worked, "level": level, "subject": subject}
        return Question(text_in(row, "problem"), data)

    def solution(self, problem: Problem) -> list[Message]:
        worked, answer = problem.data["worked"], problem.data["answer"]
        boxed = rf"\boxed{{{answer}}}"
        if replies.in_box(worked) != answer:
            worked = f"{worked}\n\n{boxed}".strip()
        return [*problem.messages, Message("assistant", worked)]


def _answer(row: JsonObject, worked: str) -> str:
    answer = row.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return str(answer)
    if isinstance(answer, str) and answer.strip():
        return answer.strip()
    boxed = replies.in_box(worked)
    bare = None if boxed else _BARE.search(worked)
    found = boxed or (bare[1] if bare else "")
    if not found.strip():
        raise Unusable(r"there is neither an answer nor a \boxed{} in the solution")
    return found.strip()


def _level(value: object) -> int | None:
    """Of `Level 3` or 3; None: unknown, which MATH writes as `Level ?`."""
    found = _DIGITS.search(str(value))
    return int(found[0]) if found else None
