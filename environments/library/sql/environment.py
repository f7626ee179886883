"""sql: answer a question about a made-up database with one SELECT, run in a sandbox on databases it has not seen."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from environments.library.draws import of_split
from environments.library.judged import Judged
from environments.library.made_up import MadeUp, MadeUpArgs
from environments.library.sql import questions as sql_questions
from environments.library.sql.questions import LEVELS, SqlQuestion
from environments.library.sql.runner import filled, result_of
from environments.rewards.replies import answer, in_fence, in_tag
from environments.sandbox.tools import SandboxLimits, run
from environments.types import FinishedRollout, JsonObject, Message, Problem, Split

_SYSTEM = "Answer with one SELECT statement of SQLite, in one block between lines of three backticks."
_RUNNER = Path(__file__).with_name("runner.py").read_text()
_DATABASES = 3
"""With the same tables and other rows: a query that is right by accident is wrong on one of them."""
_DRAWS = 30
_SHOWN_ROWS = 3
_MOST_ROWS, _MOST_STEPS = 500, 2_000_000
_LONGEST_QUERY = 20_000
_OUTPUT_BYTES = 512 * 1024
_LIMITS = SandboxLimits(
    wall_s=5, cpu_s=5, memory_bytes=128 * 2**20, processes=4, disk_bytes=2**20, kept_bytes=_OUTPUT_BYTES
)
_RIGHT, _ROWS, _COLUMNS = 1.0, 0.3, 0.2
"""Rewards: of the right query; at most, of one that gives some right rows, and of one that reads the right columns."""
_DIGITS = 6
"""Behind the point that count."""


class SqlArgs(MadeUpArgs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of sql."""

    min_level: Annotated[int, Meta(ge=1, le=LEVELS, description="Easiest questions.")] = 1
    max_level: Annotated[int, Meta(ge=1, le=LEVELS, description="Hardest questions.")] = LEVELS


class Sql(Judged[SqlArgs], MadeUp[SqlArgs]):
    """Answer a question about a made-up database with one SELECT.

    Task: two tables with some of their rows, and a question; the reply has a query, fenced or in `<sql>`.
    Data: 14 families of questions in 4 levels over 6 themes, rows made up by seed, of this project (Apache-2.0).
    Arguments: levels.
    Reward: 1 where the rows are right on three databases (in order, if the question asks for one); else up to .3 for
        the share of right rows and up to .2 for that of the columns read.
    Checked: by running them. The solution of each of 40 held-out problems gives 1; random text and `SELECT 1` give 0,
        a whole table .09 and its names .05 on average; 35 queries that write, recur, or flood give 0 and end in time.
    """

    name = "sql"
    version = "3"
    args_type = SqlArgs

    def problem(self, split: Split, index: int) -> Problem:
        levels = (self.args.min_level, self.args.max_level)
        seed = f"sql/{self.args.seed}/{split}/{index}"
        question = of_split(split, seed, lambda draws: sql_questions.draw(draws, levels), lambda drawn: drawn.name)
        databases = _databases(question)
        return Problem(
            key=question.name,
            messages=[Message("system", _SYSTEM), Message("user", _shown(question, databases[0]))],
            data={
                "databases": databases,
                "expected": [_right(question, each) for each in databases],
                "ordered": question.is_ordered,
                "query": question.query,
            },
        )

    async def judge(self, problem: Problem, rollout: FinishedRollout) -> float:
        """1 for a right query, up to .5 for one that gives right rows or reads right columns."""
        reply = answer(problem, rollout)
        query = in_tag(reply, "sql") or in_fence(reply)
        results = await _results(query, problem.data["databases"]) if query else []
        rollout.metrics["has_query"] = float(bool(query))
        rollout.metrics["ran"] = float(bool(results))
        if not results:
            return 0.0
        expected, is_ordered = problem.data["expected"], problem.data["ordered"]
        pairs = list(zip(expected, results, strict=True))
        if all(_is_same(_rows(right["rows"]), _rows(given["rows"]), is_ordered) for right, given in pairs):
            return _RIGHT
        rows = sum(_overlap(_rows(right["rows"]), _rows(given["rows"])) for right, given in pairs) / len(pairs)
        columns = _overlap(_rows(expected[0]["read"]), _rows(results[0]["read"]))
        return _ROWS * rows + _COLUMNS * columns

    def solution(self, problem: Problem) -> list[Message]:
        return [*problem.messages, Message("assistant", f"```sql\n{problem.data['query']}\n```")]


def _right(question: SqlQuestion, database: list[Any]) -> JsonObject:
    """The rows, in an order that no version of SQLite changes, and the columns read."""
    result = result_of(filled(database), question.query, _MOST_ROWS, _MOST_STEPS)
    return result if question.is_ordered else result | {"rows": sorted(result["rows"], key=repr)}


def _databases(question: SqlQuestion) -> list[Any]:
    """Such that the answer has rows on each of them, where that can be."""
    bearing: list[Any] = []
    other: list[Any] = []
    for number in range(_DRAWS):
        database = question.theme.filled(f"{question.name}/{number}")
        rows = result_of(filled(database), question.query, _MOST_ROWS, _MOST_STEPS)["rows"]
        (bearing if rows else other).append(database)
        if len(bearing) == _DATABASES:
            break
    return (bearing + other)[:_DATABASES]


def _shown(question: SqlQuestion, database: list[Any]) -> str:
    """The question, with the tables and the first of their rows."""
    lines = []
    for statement, (insertion, rows) in zip(question.theme.schema, database[len(question.theme.schema) :], strict=True):
        table = insertion.split()[2]
        lines += [f"{statement};", f"-- the first rows of {table}:"]
        lines += [f"-- {' | '.join(map(str, row))}" for row in rows[:_SHOWN_ROWS]]
    return "\n".join([*lines, "", question.words])


async def _results(query: str, databases: list[Any]) -> list[JsonObject]:
    """What it gives on each database; nothing where it fails on one. Raises SandboxUnavailable."""
    if len(query) > _LONGEST_QUERY:
        return []
    asked = {"query": query, "databases": databases, "most_rows": _MOST_ROWS, "most_steps": _MOST_STEPS}
    done = await run(
        ["python3", "-I", "sql_runner.py"],
        files={"sql_runner.py": _RUNNER},
        stdin=json.dumps(asked),
        limits=_LIMITS,
    )
    if not done.succeeded or done.stdout_was_cut:
        return []
    results: list[JsonObject] = json.loads(done.stdout)["results"]
    return results if all("rows" in result for result in results) else []


def _rows(told: list[list[Any]]) -> list[tuple[Any, ...]]:
    """With numbers that are alike alike."""
    return [tuple(round(value, _DIGITS) if isinstance(value, float) else value for value in row) for row in told]


def _is_same(right: list[tuple[Any, ...]], given: list[tuple[Any, ...]], is_ordered: bool) -> bool:
    return right == given if is_ordered else Counter(right) == Counter(given)


def _overlap(right: list[tuple[Any, ...]], given: list[tuple[Any, ...]]) -> float:
    """Rows that both have, of those that either has."""
    one, other = Counter(right), Counter(given)
    both = (one & other).total()
    return both / ((one | other).total() or 1)
