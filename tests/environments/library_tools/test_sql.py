"""sql: right are the rows on three databases, and a query can do nothing but read."""

import sqlite3
import time
from typing import Any

import pytest

from environments import registry
from environments.env import Environment
from environments.errors import InvalidArguments
from environments.library.sql.runner import filled, result_of
from environments.types import Message, Problem, Split
from tests.environments.library_tools.playing import check_splits, hostile, reward_of, reward_of_solution, scored
from tests.environments.sandbox.programs import needs_sandbox

pytestmark = pytest.mark.slow  # most start a sandbox


def sql(**args: object) -> Environment[Any]:
    return registry.load("sql", args)


def towns(*rows: tuple[str, int]) -> list[Any]:
    return ["CREATE TABLE towns (name TEXT, people INTEGER)", ["INSERT INTO towns VALUES (?, ?)", [*map(list, rows)]]]


def posed(query: str, ordered: bool = False) -> Problem:
    databases = [towns(("Ada", 5), ("Bel", 7), ("Cor", 2)), towns(("Dun", 9), ("Ada", 7), ("Fal", 1))]
    expected = [
        {"rows": [*filled(each).execute(query)], "read": [["towns", "name"], ["towns", "people"]]} for each in databases
    ]
    data = {"databases": databases, "expected": expected, "ordered": ordered, "query": query}
    return Problem(key="towns", messages=[Message("user", "?")], data=data)


LARGE = posed("SELECT name FROM towns WHERE people > 4")
SORTED = posed("SELECT name, people FROM towns ORDER BY people DESC", ordered=True)


def test_problems_are_the_same_every_time_and_splits_share_none() -> None:
    check_splits("sql", {}, 150)


def test_questions_of_every_level_have_an_answer_that_hangs_on_the_rows() -> None:
    families = set()
    for level in (1, 2, 3, 4):
        environment = sql(min_level=level, max_level=level)
        for index in range(30):
            problem = environment.problem(Split.TRAIN, index)
            families.add(problem.key.partition("-")[0])
            assert "$" not in problem.messages[1].text + problem.data["query"]
            assert all("rows" in right for right in problem.data["expected"])
            assert len({str(right["rows"]) for right in problem.data["expected"]}) > 1
    assert len(families) >= 12


def test_a_question_says_what_becomes_of_groups_without_rows() -> None:
    """A left join has them, beside NULL: a fair reading of words that do not say."""
    environment = sql(min_level=3, max_level=3)
    problems = [environment.problem(Split.TRAIN, index) for index in range(40)]
    for problem in [each for each in problems if each.key.startswith("join_group")]:
        query = problem.data["query"].replace("JOIN", "LEFT JOIN").replace("WHERE", "AND")
        others = [result_of(filled(each), query, 500, 1_000_000)["rows"] for each in problem.data["databases"]]
        has_more = any(None in row for rows in others for row in rows)
        assert not has_more or "Leave out" in problem.messages[1].text


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_its_own_solutions_earn_the_full_reward(level: int) -> None:
    environment = sql(min_level=level, max_level=level)
    for index in range(10):
        assert reward_of_solution(environment, environment.problem(Split.EVAL, index)) == 1.0


@needs_sandbox
@pytest.mark.parametrize(
    ("query", "reward"),
    [
        ("SELECT name FROM towns WHERE people > 4", 1.0),
        ("select t.name from towns as t where not t.people <= 4 order by 1 desc;", 1.0),
        ("-- those that are large\n  -- enough\nSELECT name FROM towns WHERE people > 4", 1.0),
        ("WITH large AS (SELECT * FROM towns WHERE people >= 5) SELECT name FROM large", 1.0),
        # Right on the first database alone: 2 of 2 rows there, 1 of 2 here; 3/4 of .3, and both columns.
        ("SELECT name FROM towns WHERE people IN (5, 7)", 0.3 * 0.75 + 0.2),
        ("SELECT name FROM towns", 0.3 * 2 / 3 + 0.2 / 2),
        ("SELECT name, people FROM towns WHERE people > 4", 0.2),
        ("SELECT name, name FROM towns WHERE people > 4", 0.2),
        ("SELECT 'Ada' UNION SELECT 'Bel'", 0.3 * (1 + 1 / 3) / 2),
        ("SELECT 1", 0.0),
        ("SELECT nothing FROM towns", 0.0),
        ("SELECT name FROM", 0.0),
    ],
)
def test_rewards(query: str, reward: float) -> None:
    [fenced, tagged] = scored(sql(), LARGE, f"So:\n```sql\n{query}\n```", f"<sql>{query}</sql>")
    assert fenced.reward == tagged.reward == pytest.approx(reward)


@needs_sandbox
def test_order_counts_where_the_question_asks_for_it() -> None:
    ordered, other = "SELECT name, people FROM towns ORDER BY 2 DESC", "SELECT name, people FROM towns ORDER BY 2"
    assert reward_of(sql(), SORTED, f"<sql>{ordered}</sql>") == 1.0
    assert reward_of(sql(), SORTED, f"<sql>{other}</sql>") == pytest.approx(0.5)


@needs_sandbox
def test_a_row_that_is_there_twice_counts_twice() -> None:
    assert reward_of(sql(), LARGE, "<sql>SELECT name FROM towns WHERE people > 4 UNION ALL SELECT 'Ada'</sql>") < 0.5


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT"
ABUSES = [
    "DELETE FROM towns",
    "DROP TABLE towns",
    "UPDATE towns SET people = 9",
    "INSERT INTO towns VALUES ('x', 1)",
    "CREATE TABLE more (x)",
    "CREATE TEMP VIEW v AS SELECT 1",
    "PRAGMA table_info(towns)",
    "PRAGMA writable_schema = 1",
    "SELECT * FROM pragma_table_info('towns')",
    "ATTACH 'towns.db' AS other",
    "VACUUM INTO 'copy.db'",
    "BEGIN",
    "SELECT name FROM towns WHERE people > 4; DELETE FROM towns",
    "SELECT sql FROM sqlite_master",
    "SELECT load_extension('x')",
    "SELECT randomblob(1000000000)",
    "SELECT zeroblob(1000000000)",
    "SELECT printf('%.*c', 100000000, 'x') FROM towns",
    "SELECT replace(hex(zeroblob(5000)), '0', hex(zeroblob(5000)))",
    f"{ENDLESS} count(*) FROM n",
    f"{ENDLESS} x FROM n",
    f"{ENDLESS} name FROM towns, n",
    "SELECT count(*) FROM " + ", ".join(f"towns t{n}" for n in range(40)),
    "SELECT a.name FROM " + ", ".join(f"towns {name}" for name in "abcdefghijklmn"),
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "SELECT " + "+".join(["1"] * 5000),
    "SELECT " + ", ".join(["name"] * 3000) + " FROM towns",
    " UNION ALL ".join(["SELECT name FROM towns"] * 600),
    "SELECT x'00' FROM towns",
    "SELECT 1e999 FROM towns",
    "EXPLAIN SELECT name FROM towns WHERE people > 4",
    "-- why\nEXPLAIN QUERY PLAN SELECT name FROM towns WHERE people > 4",
    "/* why */ EXPLAIN SELECT name FROM towns WHERE people > 4",
    "SELECT name FROM towns WHERE people > 4 AND \0",
    "import os; os._exit(0)",
]


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("query", ABUSES)
def test_a_query_that_does_more_than_read_is_worth_nothing_and_ends_in_time(query: str) -> None:
    began = time.monotonic()
    reward = reward_of(sql(), LARGE, f"<sql>{query}</sql>")
    assert time.monotonic() - began < 4  # the sandbox would end it after 5
    assert reward == 0.0


@needs_sandbox
@hostile
def test_nonsense_is_worth_nothing_and_costs_nothing(reply: str) -> None:
    began = time.monotonic()
    assert reward_of(sql(), LARGE, reply) == 0.0
    assert time.monotonic() - began < 5


def test_a_database_of_a_problem_is_one_that_sqlite_takes() -> None:
    [database, *_] = sql().problem(Split.TRAIN, 0).data["databases"]
    tables = [name for (name,) in filled(database).execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert len(tables) == 2
    assert sqlite3.sqlite_version_info >= (3, 31)


def test_bad_arguments_are_refused_by_name() -> None:
    with pytest.raises(InvalidArguments, match="min_level"):
        sql(min_level=3, max_level=1)
