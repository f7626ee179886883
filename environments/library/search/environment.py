"""search: answer questions about a world that no model has read of, with a tool that finds paragraphs."""

import asyncio
import json
import re
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from environments.env import Environment, PolicySession
from environments.library.data import rows
from environments.library.data.files import DataFiles
from environments.library.draws import Draws
from environments.library.made_up import RangedArgs
from environments.library.search import world as search_world
from environments.library.search.world import HOPS, HopQuestion
from environments.library.splits import digest, is_held_out
from environments.library.tool_calls import FAILED, answer_calls, answers_of, text_argument, tool
from environments.rewards.replies import answer, in_tag
from environments.types import FinishedRollout, FunctionCall, JsonObject, Message, Problem, Split, ToolCall

_SYSTEM = (
    "Answer with a few words in <answer></answer>. The tool search returns the paragraphs that fit a query best, the "
    "tool read the one with a title."
)
_TOOLS = [
    tool("search", "Find paragraphs.", query="A few words."),
    tool("read", "Return a paragraph.", title="Its whole title."),
]
_PARTIAL = 0.3
"""At most, of an answer that shares words with the right one."""
_LONGEST_QUERY, _LONGEST_ANSWER = 500, 500
"""Characters that count."""
_SHOWN = 2_000
"""Characters of a paragraph."""
_ARTICLES = {"a", "an", "the"}
_COMMA_OF_NUMBER = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")


class SearchArgs(RangedArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of search."""

    data: Annotated[
        str, Meta(description="A file or directory with rows of title, text and of question, answer; empty: a world.")
    ] = ""
    paragraphs: Annotated[int, Meta(ge=100, le=20_000, description="How many the world has.")] = 2_000
    min_hops: Annotated[int, Meta(ge=1, le=HOPS, description="Fewest paragraphs that an answer takes.")] = 1
    max_hops: Annotated[int, Meta(ge=1, le=HOPS, description="Most paragraphs that an answer takes.")] = 2
    results: Annotated[int, Meta(ge=1, le=20, description="Paragraphs that a search returns.")] = 4
    max_calls: Annotated[int, Meta(ge=1, le=64, description="Calls that are answered, per episode.")] = 6
    seed: Annotated[int, Meta(description="Seed of the world.")] = 0


class Search(Environment[SearchArgs]):
    """Answer questions about an invented world with a tool that finds paragraphs in it.

    Task: a question that takes one to three paragraphs; calls of `search(query)` and `read(title)`, then a few words in
        `<answer>`.
    Data: rivers, towns, companies and people, made up by seed, of this project (Apache-2.0); or your own paragraphs and
        questions, split as the names of their files say it, else an eighth is held out.
    Arguments: size of the world, paragraphs that an answer takes, paragraphs that a search returns.
    Reward: 1 for the answer, but for case, articles and punctuation; else .3 times the share of its words (F1).
    Checked: the solution of each of 400 held-out problems gives 1 and finds every paragraph with the real index; random
        text gives 0, a guess without a search less than .01 on average, and a list of all that may be asked below .05.
    """

    name = "search"
    version = "3"
    args_type = SearchArgs

    def __init__(self, args: SearchArgs) -> None:
        super().__init__(args)
        hops = (args.min_hops, args.max_hops)
        self._files = DataFiles(args.data) if args.data else None
        if self._files is None:
            self._paragraphs, questions = search_world.made(str(args.seed), args.paragraphs, hops)
            train, held_out = questions, questions
        else:
            self._paragraphs, train, held_out = _of_rows(self._files)
        self._questions = _split(train, held_out, hops, args.seed)
        for split, fitting in self._questions.items():
            if not fitting and (train or split is Split.EVAL):
                raise ValueError(f"data {args.data} has no question for the {split} split: it needs more")

    def count(self, split: Split) -> int:
        found = len(self._questions[split])
        if not found and self._files is not None:
            raise self._files.nothing_to_train_on("name one of its files, which is divided then")
        return found

    def problem(self, split: Split, index: int) -> Problem:
        question = self._questions[split][index]
        return Problem(
            key=digest(f"{self.args.data}/{self.args.seed}/{self.args.paragraphs}/{question.words}")[:16],
            messages=[Message("system", _SYSTEM), Message("user", question.words)],
            data={"answer": question.answer, "titles": question.titles},
            tools=_TOOLS,
        )

    async def play(self, problem: Problem, session: PolicySession) -> None:
        """Answer calls until the policy makes none, or too many."""

        async def answered(function: FunctionCall) -> str:
            return await asyncio.to_thread(self._answered, function)

        await answer_calls(problem, session, answered, self.args.max_calls)

    def reward(self, problem: Problem, rollout: FinishedRollout) -> float:
        """1 for the answer, else up to .3 by the words that it shares with the right one."""
        outputs = answers_of(rollout)
        titles = problem.data["titles"]
        found = sum(any(f"{_heading(title)}\n" in output for output in outputs) for title in titles)
        told = _compared((in_tag(answer(problem, rollout), "answer") or "")[:_LONGEST_ANSWER])
        right = _compared(problem.data["answer"])
        rollout.metrics |= {
            "right": float(told == right),
            "calls": float(len(outputs)),
            "found": found / len(titles) if titles else 0.0,
        }
        return 1.0 if told == right else _PARTIAL * _f1(told, right)

    def solution(self, problem: Problem) -> list[Message]:
        """Search for each title in turn, and say what the last paragraph says."""
        messages = list(problem.messages)
        for number, title in enumerate(problem.data["titles"], 1):
            call = ToolCall(f"call_{number}", FunctionCall("search", json.dumps({"query": title})))
            messages.append(Message("assistant", "", tool_calls=[call]))
            messages.append(Message("tool", self._answered(call.function), tool_call_id=call.id))
        return [*messages, Message("assistant", f"<answer>{problem.data['answer']}</answer>")]

    @cached_property
    def _titles(self) -> list[str]:
        return list(self._paragraphs)

    @cached_property
    def _index(self) -> Any:
        # Takes half a second to import where numba is installed; whoever only looks at problems needs none of it.
        import bm25s  # type: ignore[import-untyped]

        index = bm25s.BM25()
        texts = [f"{title} {text}" for title, text in self._paragraphs.items()]
        index.index([_words(text) for text in texts], show_progress=False)
        return index

    def _answered(self, function: FunctionCall) -> str:
        """What a call finds, or what is wrong with it."""
        if (query := text_argument(function, "search", "query")) is not None:
            return self._found(query[:_LONGEST_QUERY])
        if (title := text_argument(function, "read", "title")) is not None:
            return self._shown(title) if title in self._paragraphs else f"{FAILED} no paragraph has this title"
        return f"{FAILED} call search with a text, query, or read with a text, title"

    def _found(self, query: str) -> str:
        words = [word for word in _words(query) if word in self._index.vocab_dict]
        if not words:
            return "No paragraph has any of these words."
        count = min(self.args.results, len(self._titles))
        found, scores = self._index.retrieve([words], k=count, show_progress=False, sorted=True)
        best = [self._titles[number] for number, score in zip(found[0], scores[0], strict=True) if score > 0]
        return "\n\n".join(map(self._shown, best)) or "No paragraph fits."

    def _shown(self, title: str) -> str:
        return f"{_heading(title)}\n{self._paragraphs[title][:_SHOWN]}"


def _heading(title: str) -> str:
    return f"# {title}"


def _split(
    train: list[HopQuestion], held_out: list[HopQuestion], hops: tuple[int, int], seed: int
) -> dict[Split, list[HopQuestion]]:
    """In an order of their own. Where both are the same ones each goes where its words say; none is in both."""

    def mixed(questions: list[HopQuestion]) -> list[HopQuestion]:
        fitting = [each for each in questions if hops[0] <= each.hops <= hops[1]]
        return Draws(f"search/order/{seed}").sample(fitting, len(fitting))

    if train is held_out:
        both = mixed(train)
        return {split: [each for each in both if is_held_out(each.words) == (split is Split.EVAL)] for split in Split}
    held = {each.words for each in held_out}
    return {Split.TRAIN: mixed([each for each in train if each.words not in held]), Split.EVAL: mixed(held_out)}


def _of_rows(files: DataFiles) -> tuple[dict[str, str], list[HopQuestion], list[HopQuestion]]:
    """Paragraphs of all files by title, questions to train on and held-out questions.

    Rows with a `text` are paragraphs, those with a `question` questions; `titles`: where the answer stands.
    """
    paragraphs = {}
    for number, row in enumerate(rows.read(files.paths), 1):
        if row.get("text"):
            paragraphs[str(row.get("title") or number)] = str(row["text"])
        elif not _is_question(row):
            raise ValueError(
                f"data {files.data}, row {number}: it needs a title and a text, or a question and an answer"
            )
    if not paragraphs:
        raise ValueError(f"data {files.data} has no paragraph: rows with a title and a text")
    train, held_out = files.sources()
    if not held_out:
        known = ", ".join(files.splits)
        raise ValueError(f"data {files.data} has neither a train nor a test split but {known}: name one of its files")
    questions = _questions(held_out)
    return paragraphs, questions if train == held_out else _questions(train), questions


def _questions(paths: list[Path]) -> list[HopQuestion]:
    found = []
    for row in rows.read(paths) if paths else ():
        if not row.get("text") and _is_question(row):
            titles = [str(title) for title in row.get("titles") or []]
            hops = max(min(len(titles), HOPS), 1)
            found.append(HopQuestion(str(row["question"]), str(row["answer"]), titles, hops))
    return found


def _is_question(row: JsonObject) -> bool:
    return bool(row.get("question")) and bool(_words(str(row.get("answer") or "")))


def _words(text: str) -> list[str]:
    """In small letters, without punctuation."""
    return "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()


def _compared(text: str) -> list[str]:
    """Its words without articles, if it has any other; commas in numbers part no words."""
    words = _words(_COMMA_OF_NUMBER.sub("", text))
    return [word for word in words if word not in _ARTICLES] or words


def _f1(told: list[str], right: list[str]) -> float:
    both = (Counter(told) & Counter(right)).total()
    return 2 * both / (len(told) + len(right)) if both else 0.0
