"""Runs one query on several databases, inside of a sandbox. Standard library only.

stdin   {"query", "databases": [[statement or [statement, rows], ...], ...], "most_rows", "most_steps"}
stdout  {"results": [{"rows": [[value, ...], ...], "read": [[table, column], ...]} or {"error": why}, ...]}
"""

import json
import sqlite3
import sys
from typing import Any

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
"""Nothing that writes, attaches, sets or recurs."""
_REFUSED_FUNCTIONS = {"load_extension", "randomblob", "zeroblob", "random", "printf", "format", "fts3_tokenizer"}
_STEPS_BETWEEN_LOOKS = 1_000
_MOST_VALUE_BYTES = 10_000
_MOST_QUERY_BYTES = 20_000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _MOST_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: _MOST_QUERY_BYTES,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_COLUMN: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 50_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}


def filled(statements: list[Any]) -> sqlite3.Connection:
    """A database in memory."""
    database = sqlite3.connect(":memory:")
    for each in statements:
        if isinstance(each, str):
            database.execute(each)
        else:
            database.executemany(*each)
    database.commit()
    return database


def result_of(database: sqlite3.Connection, query: str, most_rows: int, most_steps: int) -> dict[str, Any]:
    """The rows of a query and the columns that it read, or why there are none."""
    read: set[tuple[str, str]] = set()
    looks = 0

    def authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_READ:
            if str(first).startswith("sqlite_"):
                return sqlite3.SQLITE_DENY
            read.add((str(first), str(second)))
        is_refused = action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _REFUSED_FUNCTIONS
        return sqlite3.SQLITE_OK if action in _ALLOWED and not is_refused else sqlite3.SQLITE_DENY

    def look() -> bool:
        nonlocal looks
        looks += 1
        return looks * _STEPS_BETWEEN_LOOKS > most_steps

    for limit, most in _LIMITS.items():
        database.setlimit(limit, most)
    if not _is_question(query):
        return {"error": "a query begins with SELECT or WITH"}
    database.set_authorizer(authorize)
    database.set_progress_handler(look, _STEPS_BETWEEN_LOOKS)
    try:
        cursor = database.execute(query)
        rows = cursor.fetchmany(most_rows + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        return {"error": str(error)[:200]}
    if len(rows) > most_rows:
        return {"error": f"more than {most_rows} rows"}
    if any(isinstance(value, bytes) for row in rows for value in row):
        return {"error": "a value is no number and no text"}
    return {"rows": rows, "read": sorted(read)}


def _is_question(query: str) -> bool:
    """Whether it begins as one, behind comments in lines: the authorizer takes EXPLAIN for what it explains."""
    text = query.lstrip()
    while text.startswith("--"):
        text = text.partition("\n")[2].lstrip()
    return text[:6].upper().startswith(("SELECT", "WITH"))


def main() -> None:
    """Answer what stdin asks for."""
    asked = json.loads(sys.stdin.buffer.read())
    limits = asked["most_rows"], asked["most_steps"]
    results = [result_of(filled(each), asked["query"], *limits) for each in asked["databases"]]
    sys.stdout.write(json.dumps({"results": results}))


if __name__ == "__main__":
    main()
