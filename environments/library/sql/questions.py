"""Questions about a database of two tables, in words and in SQL: a family for each kind of query.

In the templates `$parents`, `$amount` and the like are what the theme calls them; `$a`, `$k`, ... are drawn.
"""

from string import Template
from typing import NamedTuple

from environments.library.draws import Draws
from environments.library.sql.themes import THEMES, Theme

LEVELS = 4


class SqlQuestion(NamedTuple):
    """What is asked, and the query that answers it."""

    name: str
    """Short, and different for each question."""
    theme: Theme
    words: str
    query: str
    is_ordered: bool


class _Family(NamedTuple):
    name: str
    level: int
    words: str
    query: str
    is_ordered: bool = False


_FAMILIES = [
    _Family("filter", 1, "What are the names of the $parents whose $kind is $a and whose $year is $y or later?",
            "SELECT name FROM $parents WHERE $kind = '$a' AND $year >= $y"),
    _Family("between", 1, "What are the name and $sort of each of the $children whose $amount is from $k to $m?",
            "SELECT name, $sort FROM $children WHERE $amount BETWEEN $k AND $m"),
    _Family("count", 1, "How many $children have the $sort $b and a $amount above $k?",
            "SELECT count(*) FROM $children WHERE $sort = '$b' AND $amount > $k"),
    _Family("either", 1, "What are the names of the $children whose $sort is $b or $c and whose $amount is below $m?",
            "SELECT name FROM $children WHERE $sort IN ('$b', '$c') AND $amount < $m"),
    _Family("order", 2, "What are the names of the $n $children with the $most $amount among those whose $sort is not "
            "$b? Order them by $amount, $most first, and those with the same by id.",
            "SELECT name FROM $children WHERE $sort <> '$b' ORDER BY $amount $way, id LIMIT $n", True),
    _Family("group", 2, "For each $sort of the $children with a $amount above $k: what are the $sort, how many there "
            "are, and the sum of their $amount?",
            "SELECT $sort, count(*), sum($amount) FROM $children WHERE $amount > $k GROUP BY $sort"),
    _Family("distinct", 2, "How many different ${parents} have any of the $children with the $sort $b and a $amount of "
            "at least $k?",
            "SELECT count(DISTINCT $key) FROM $children WHERE $sort = '$b' AND $amount >= $k"),
    _Family("having", 3, "Which values of $key occur with at least $n $children whose $amount is above $k, and with "
            "how many?",
            "SELECT $key, count(*) FROM $children WHERE $amount > $k GROUP BY $key HAVING count(*) >= $n"),
    _Family("join", 3, "What are the names of the $children, each beside the name of its $parent, that have the $sort "
            "$b and whose $parent has a $year before $y?",
            "SELECT c.name, p.name FROM $children c JOIN $parents p ON p.id = c.$key WHERE c.$sort = '$b' "
            "AND p.$year < $y"),
    _Family("join_group", 3, "For each $kind of the $parents: what are the $kind and the $most $amount of the "
            "$children of such $parents, counting only $children whose $sort is not $b? Leave out "
            "each $kind that has none.",
            "SELECT p.$kind, $extreme(c.$amount) FROM $parents p JOIN $children c ON c.$key = p.id "
            "WHERE c.$sort <> '$b' GROUP BY p.$kind"),
    _Family("average", 4, "What are the names of the $children whose $amount is above the average $amount of all "
            "$children with the $sort $b and at most $m?",
            "SELECT name FROM $children WHERE $amount > (SELECT avg($amount) FROM $children WHERE $sort = '$b') "
            "AND $amount <= $m"),
    _Family("without", 4, "What are the names of the $parents with a $year from $y on that have none of the $children "
            "with the $sort $b and a $amount above $k?",
            "SELECT name FROM $parents p WHERE $year >= $y AND NOT EXISTS (SELECT 1 FROM $children c "
            "WHERE c.$key = p.id AND c.$sort = '$b' AND c.$amount > $k)"),
    _Family("extreme", 4, "For each of the $parents that has any of the $children with the $sort $b or $c: what are "
            "the name of the $parent and the names of those of them with the $most $amount (all that have it)?",
            "SELECT p.name, c.name FROM $children c JOIN $parents p ON p.id = c.$key WHERE c.$sort IN ('$b', '$c') "
            "AND c.$amount = (SELECT $extreme(o.$amount) FROM $children o WHERE o.$key = c.$key "
            "AND o.$sort IN ('$b', '$c'))"),
    _Family("ranking", 4, "What are the name and the number of $children with a $amount above $k for each of the "
            "$parents, those with none included? Order by that number, the largest first, and then by id.",
            "SELECT p.name, count(c.id) FROM $parents p LEFT JOIN $children c ON c.$key = p.id AND c.$amount > $k "
            "GROUP BY p.id ORDER BY count(c.id) DESC, p.id", True),
]  # fmt: skip


def draw(draws: Draws, levels: tuple[int, int]) -> SqlQuestion:
    """A question of one of these levels, both ends included."""
    level = draws.between(*levels)
    family = draws.pick([each for each in _FAMILIES if each.level == level])
    theme = draws.pick(THEMES)
    low, high = theme.amounts
    half = (high - low) // 2
    b, c = draws.sample(theme.sorts, 2)
    way = draws.pick(["DESC", "ASC"])
    chosen = {
        "a": draws.pick(theme.kinds),
        "b": b,
        "c": c,
        "k": draws.between(low, low + half),
        "m": draws.between(low + half + 1, high - half // 4),
        "n": draws.between(2, 5) if family.name == "order" else draws.between(2, 3),
        "way": way,
        "y": draws.between(1965, 2000),
    }
    used = [str(value) for name, value in chosen.items() if f"${name}" in _bare(family)]
    words_of_way = {"most": "largest", "extreme": "max"} if way == "DESC" else {"most": "smallest", "extreme": "min"}
    told = theme._asdict() | {"key": theme.key} | words_of_way | chosen
    words, query = (Template(text).substitute(told) for text in (family.words, family.query))
    name = "-".join([family.name, theme.parents, *used, *([way] if "$most" in family.words else [])])
    return SqlQuestion(name.lower().replace(" ", "_"), theme, words, query, family.is_ordered)


def _bare(family: _Family) -> str:
    """Its words with the names of parameters of one letter alone."""
    return " ".join(word.strip("'?.,:()") for word in family.words.split() if len(word.strip("'?.,:()")) == 2)
