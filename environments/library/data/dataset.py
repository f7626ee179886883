"""dataset: any data set, asked by a template or by the conversations that it has."""

from collections.abc import Sequence
from string import Formatter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from environments.library.data.sets import DataSetArgs, DataSetEnvironment, Question, Unusable, required
from environments.rewards.registry import RewardPart
from environments.types import JsonObject, Message, Problem


class DatasetArgs(DataSetArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of dataset."""

    prompt: Annotated[
        str,
        Meta(description="Column of texts or of conversations; or a text with {column} where a column's content goes."),
    ]
    answer: Annotated[
        str, Meta(description="Column of the right answers; empty for none. Of a conversation its own: its last reply.")
    ] = "answer"
    keep: Annotated[
        list[str], Meta(description="Further columns that rewards can read, under their names in problem.data.")
    ] = []


class AnyDataSet(DataSetEnvironment[DatasetArgs]):
    """Any data set of questions.

    Task: what the data set asks; one reply.
    Data: rows with any columns. `prompt` is a column of texts, a column of conversations in the OpenAI form (a reply of
    the assistant at their end is taken off), or a template such as `{question} Answer in {language}.`, where `{{` and
    `}}` stand for braces. The licence is that of the data set.
    Arguments: `prompt`, `answer`, `keep`; `data`, `config`, `train_split`, `eval_split`, `system`, `instruction`,
    `seed`, `rewards`.
    Reward: `exact` for the column `answer`, or whatever `rewards` names.
    Checked: on texts, templates and conversations, as JSON lines and Parquet.
    """

    name = "dataset"
    version = "5"
    args_type = DatasetArgs
    default_rewards = (RewardPart(name="exact"),)

    def __init__(self, args: DatasetArgs) -> None:
        if not args.answer and args.rewards is None:
            raise ValueError("rewards: name some, for without an answer there is nothing to compare replies with")
        self._template: list[tuple[str, str | None]] | None = None
        super().__init__(args)

    def reads(self, columns: Sequence[str]) -> Sequence[str]:
        args = self.args
        asked = [args.prompt]
        if args.prompt not in columns:
            self._template = _parsed(args.prompt)
            asked = [name for _, name in self._template if name is not None]
            if not asked:
                known = ", ".join(columns)
                raise ValueError(f"prompt: it is no column and has no {{column}} in it; there are {known}")
        return list(dict.fromkeys(required(args.data, columns, *asked, *filter(None, [args.answer]), *args.keep)))

    def question(self, row: JsonObject) -> Question:
        args, last = self.args, ""
        given: list[Message] = []
        if self._template is not None:
            text = _filled(self._template, row)
        elif isinstance(told := row.get(args.prompt), str):
            text = told
        else:
            given, last = _conversation(told)
            text = msgspec.json.encode(given).decode()
        if not text.strip():
            raise Unusable("the prompt has no text")
        data = {name: msgspec.to_builtins(row.get(name)) for name in args.keep}
        if args.answer:
            answer = last if args.answer == args.prompt else msgspec.to_builtins(row.get(args.answer))
            if answer is None or answer == "" or answer == []:
                raise Unusable(f"{args.answer} is empty")
            data["answer"] = answer
        return Question(text, data, given)

    def solution(self, problem: Problem) -> list[Message] | None:
        answer = problem.data.get("answer")
        first = answer[0] if isinstance(answer, list) else answer
        return (
            None if first is None or isinstance(first, dict) else [*problem.messages, Message("assistant", str(first))]
        )


def _parsed(template: str) -> list[tuple[str, str | None]]:
    """Texts, each with the column behind it. Raises ValueError for what is no plain `{column}`."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"prompt: {error}; write {{{{ and }}}} for braces") from None
    if any(form or conversion for _, _, form, conversion in parts):
        raise ValueError("prompt: {column} takes no format; write {{ and }} for braces")
    return [(text, name) for text, name, _, _ in parts]


def _filled(template: list[tuple[str, str | None]], row: JsonObject) -> str:
    return "".join(text + ("" if name is None else _spelled(name, row.get(name))) for text, name in template)


def _spelled(name: str, value: Any) -> str:
    if value is None:
        raise Unusable(f"{name} is empty")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _conversation(value: Any) -> tuple[list[Message], str]:
    """What it asks, and the reply at its end. Raises Unusable."""
    try:
        messages = msgspec.convert([_without_nulls(each) for each in value], list[Message])
    except (msgspec.ValidationError, TypeError, ValueError, AttributeError):
        raise Unusable("the prompt is no conversation") from None
    last = messages.pop().text if messages and messages[-1].role == "assistant" else ""
    if not messages or messages[-1].role not in ("user", "tool"):
        raise Unusable("the conversation asks nothing")
    return messages, last


def _without_nulls(value: Any) -> Any:
    """Without absent keys: Arrow gives every structure the keys of all those of its column."""
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value
