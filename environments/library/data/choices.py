"""choices: questions with a few answers to choose from, of which one is right."""

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from environments.library.data.rows import read
from environments.library.data.sets import (
    DataSetArgs,
    DataSetEnvironment,
    Question,
    Subjects,
    Unusable,
    key_of,
    required,
    text_in,
)
from environments.library.draws import Draws
from environments.rewards.registry import RewardPart, Rewards
from environments.types import JsonObject, Message, Problem, Split

_CHOICES = ("choices", "options")
_ANSWER = ("answer", "answerKey", "answer_index", "label")
_SUBJECT = ("subject", "category", "High-level domain")
_SPREAD: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("question", ("A", "B", "C", "D"), "answer"),
    ("Question", ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"), ""),
)
"""Question, choices and answer where each choice has a column: MMLU's own files; GPQA, where the first one is right."""
_EXAMPLES = "dev"
"""The split that MMLU has for examples."""
_POINTS_AT_OTHERS = re.compile(
    r"\b(?i:above|below|(?:all|both|neither|none|two) of (?:these|them|the \w+))\b|\b[A-F] (?:and|or) [A-F]\b"
)
"""A choice that says something of others by their place, such as "none of the above", which has to stay where it is."""


class ChoicesArgs(DataSetArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of choices."""

    question_column: Annotated[str, Meta(description="Column of the questions.")] = "question"
    choices_column: Annotated[str, Meta(description="Column of the choices; by default choices or options.")] = ""
    answer_column: Annotated[
        str, Meta(description="Column of the right one: its index from 0, its letter or its text; by default answer.")
    ] = ""
    subjects: Annotated[list[str], Meta(description="Only these subjects; none: all.")] = []
    shuffle: Annotated[bool, Meta(description="Put the choices of each question into an order of its own.")] = True
    few_shot: Annotated[
        int, Meta(ge=0, le=32, description="Solved questions before each, of its subject where there are any.")
    ] = 0


class _Columns(NamedTuple):
    question: str
    choices: tuple[str, ...] = ()
    """One with all of them, or one for each."""
    answer: str = ""
    """Empty: the first choice is right."""
    subject: str = ""


class Choices(DataSetEnvironment[ChoicesArgs]):
    r"""Multiple choice.

    Task: say the letter of the right answer, of two to 26.
    Data: rows {question, choices, answer, subject}: the choices as a list, or as {text, label} as ARC has them; the
    answer by its index from 0, its letter or its text. Made for `cais/mmlu` (Hendrycks et al. 2021, arXiv:2009.03300;
    14,042 held-out questions of 57 subjects; MIT licence; config `all`) and for MMLU's own files, `TIGER-Lab/MMLU-Pro`,
    `allenai/ai2_arc`, GPQA and data of that kind. None is part of Rollyard.
    Arguments: `question_column`, `choices_column`, `answer_column`, `subjects`, `shuffle`, `few_shot`; `data`,
    `config`, `train_split`, `eval_split`, `system`, `instruction`, `seed`, `rewards`. Choices of which one points at
    others, such as "none of the above", are never shuffled. Examples come from the split `dev`, or else from those to
    train on.
    Reward: `choice`, 1 for the right letter alone.
    Checked: on files of the forms of MMLU, MMLU-Pro, ARC and GPQA; always the same letter scores its share.
    """

    name = "choices"
    version = "4"
    args_type = ChoicesArgs
    default_config = ""
    default_rewards = (RewardPart(name="choice"),)
    default_instruction = r"Put the letter of the right answer into \boxed{}."

    def __init__(self, args: ChoicesArgs) -> None:
        self._columns = _Columns("question")
        self._most = 2
        self._subjects = Subjects(args.subjects)
        super().__init__(args)
        if args.rewards is None:
            letters = ascii_uppercase[: self._most]
            self._rewards = Rewards([RewardPart(name="choice", args={"letters": letters})])
        self._examples = self._by_subject() if args.few_shot else {}

    def check_found(self) -> None:
        self._subjects.check()
        super().check_found()

    def reads(self, columns: Sequence[str]) -> Sequence[str]:
        args, subject = self.args, next((name for name in _SUBJECT if name in columns), "")
        spread = next((each for each in _SPREAD if {each[0], *each[1]} <= set(columns)), None)
        if spread and not args.choices_column:
            question, choices, answer = spread
            if not answer and not args.shuffle:
                raise ValueError("shuffle: leave it on, for the first of these choices is always the right one")
        else:
            question, choices = args.question_column, (args.choices_column or _first(_CHOICES, columns),)
            answer = args.answer_column or _first(_ANSWER, columns)
        self._columns = _Columns(question, choices, answer, subject)
        needed = required(args.data, columns, question, *choices, *filter(None, [answer]))
        if args.subjects:
            needed += required(self.args.data, columns, subject or _SUBJECT[0])
        return [*needed, subject] if subject else needed

    def question(self, row: JsonObject) -> Question | None:
        columns = self._columns
        subject = str(row.get(columns.subject) or "")
        if not self._subjects.wants(subject):
            return None
        spread = [row.get(name) for name in columns.choices]
        asked, (choices, labels) = text_in(row, columns.question), _choices(spread if len(spread) > 1 else spread[0])
        right = choices[_place(row.get(columns.answer), choices, labels) if columns.answer else 0]
        text = "\n".join([asked, *sorted(choices)])
        self._most = max(self._most, len(choices))
        return Question(text, {"answer": right, "question": asked, "choices": choices, "subject": subject})

    def asked(self, split: Split, index: int) -> Question:
        return self._lettered(super().asked(split, index))

    def messages(self, question: Question) -> list[Message]:
        messages = self.system()
        for each in [*self._examples_for(question), question]:
            lettered = zip(ascii_uppercase, each.data["choices"], strict=False)
            told = "\n".join([each.data["question"], *(f"{letter}. {choice}" for letter, choice in lettered)])
            messages += [Message("user", self.instructed(told)), _said(each.data)]
        return messages[:-1]

    def solution(self, problem: Problem) -> list[Message]:
        return [*problem.messages, _said(problem.data)]

    def _lettered(self, question: Question) -> Question:
        """The question with its choices in their order, and a letter for its answer."""
        choices = question.data["choices"]
        if self.args.shuffle and not any(map(_POINTS_AT_OTHERS.search, choices)):
            choices = Draws(question.text).sample(choices, len(choices))
        letter = ascii_uppercase[choices.index(question.data["answer"])]
        return question._replace(data=question.data | {"answer": letter, "choices": choices})

    def _by_subject(self) -> dict[str, list[Question]]:
        """What examples are drawn from; under "" all of it."""
        found: dict[str, list[Question]] = {}
        held_out = {self.asked(Split.EVAL, index).text for index in range(self.count(Split.EVAL))}
        for question in self._for_examples():
            if question.text not in held_out:
                for subject in {question.data["subject"], ""}:
                    found.setdefault(subject, []).append(question)
        if not found:
            raise ValueError(f"few_shot: {self.args.data} has no questions to take examples from; set it to 0")
        return found

    def _for_examples(self) -> list[Question]:
        if _EXAMPLES in self.files.splits:
            usable = filter(None, map(self._usable, read(self.files.of(_EXAMPLES))))
            return [self._lettered(each) for each in usable]
        return [self.asked(Split.TRAIN, index) for index in range(len(self._numbers[Split.TRAIN]))]

    def _usable(self, row: JsonObject) -> Question | None:
        try:
            return self.question(row)
        except Unusable:
            return None

    def _examples_for(self, question: Question) -> list[Question]:
        if not self.args.few_shot:
            return []
        pool = self._examples.get(question.data["subject"]) or self._examples[""]
        drawn = Draws(f"{self.args.seed}/{key_of(question)}").sample(pool, self.args.few_shot + 1)
        return [each for each in drawn if each.text != question.text][: self.args.few_shot]


def _choices(value: Any) -> tuple[list[str], list[str]]:
    """The choices and how the data set calls them. Raises Unusable."""
    labels: Any = []
    if isinstance(value, Mapping):
        value, labels = value.get("text"), value.get("label") or []
    if not isinstance(value, list) or not all(isinstance(each, str | int | float) for each in value):
        raise Unusable("the choices are no list of texts")
    choices = [str(each).strip() for each in value]
    if not 2 <= len(choices) <= len(ascii_uppercase) or not all(choices):
        raise Unusable(f"there are not 2 to {len(ascii_uppercase)} choices with some text in each")
    if len(set(choices)) < len(choices):
        raise Unusable("a choice is there twice")
    return choices, [str(each).strip() for each in labels] if len(labels) == len(choices) else []


def _place(value: Any, choices: list[str], labels: list[str]) -> int:
    """Index of the right choice: by the data set's own label, a whole number, a letter or its text. Raises Unusable.

    A number written as text is an index only where it is neither a label nor a choice.
    """
    places = [str(place) for place in range(len(choices))]
    if isinstance(value, int) and not isinstance(value, bool):
        known = [labels, places]
    else:
        known = [labels, list(ascii_uppercase[: len(choices)]), choices, places]
    said = str(value).strip()
    for names in known:
        if said in names:
            return names.index(said)
    raise Unusable("the answer is none of the choices")


def _said(data: JsonObject) -> Message:
    return Message("assistant", rf"\boxed{{{data['answer']}}}")


def _first(names: Sequence[str], columns: Sequence[str]) -> str:
    return next((name for name in names if name in columns), names[0])
