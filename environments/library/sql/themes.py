"""Made-up databases of two tables, and their rows by seed."""

from typing import Any, NamedTuple

from environments.library.draws import Draws

_SYLLABLES = ["ba", "dor", "el", "fin", "gar", "hal", "ka", "lun", "mir", "no", "or", "pel", "ra", "sol", "ti", "ven"]
_PARENTS, _CHILDREN = (6, 10), (18, 40)
"""How many rows the tables have."""


class Theme(NamedTuple):
    """What the two tables are about. Each child belongs to one parent."""

    parents: str
    """Table of them, in plural as all."""
    parent: str
    kind: str
    """A column of theirs with few values."""
    kinds: list[str]
    year: str
    """A column of theirs with a number of four digits."""
    children: str
    child: str
    sort: str
    """A column of the children with few values."""
    sorts: list[str]
    amount: str
    """A column of the children with a whole number."""
    amounts: tuple[int, int]

    @property
    def key(self) -> str:
        """The children's column with their parent's id."""
        return f"{self.parent}_id"

    @property
    def schema(self) -> list[str]:
        """The statements that make the tables."""
        return [
            f"CREATE TABLE {self.parents} (id INTEGER PRIMARY KEY, name TEXT, {self.kind} TEXT, {self.year} INTEGER)",
            f"CREATE TABLE {self.children} (id INTEGER PRIMARY KEY, name TEXT, "
            f"{self.key} INTEGER REFERENCES {self.parents}(id), {self.sort} TEXT, {self.amount} INTEGER)",
        ]

    def filled(self, seed: str) -> list[Any]:
        """The statements that make the tables and put rows in them. Some parents have no child."""
        draws = Draws(seed)
        parents = [
            [number, _name(draws), draws.pick(self.kinds), draws.between(1950, 2020)]
            for number in range(1, draws.between(*_PARENTS) + 1)
        ]
        bearing = draws.sample([parent[0] for parent in parents], len(parents) - draws.between(1, 2))
        children = [
            [number, _name(draws), draws.pick(bearing), draws.pick(self.sorts), draws.between(*self.amounts)]
            for number in range(1, draws.between(*_CHILDREN) + 1)
        ]
        return [
            *self.schema,
            [f"INSERT INTO {self.parents} VALUES (?, ?, ?, ?)", parents],
            [f"INSERT INTO {self.children} VALUES (?, ?, ?, ?, ?)", children],
        ]


THEMES = [
    Theme("authors", "author", "country", ["Norland", "Sudia", "Estmark", "Wessy"], "born",
          "books", "book", "genre", ["crime", "poems", "travel", "history"], "pages", (60, 600)),
    Theme("teams", "team", "city", ["Aldham", "Brock", "Cormont", "Dane"], "founded",
          "players", "player", "position", ["keeper", "defender", "midfielder", "striker"], "goals", (0, 40)),
    Theme("ships", "ship", "port", ["Quay", "Harbin", "Selmouth", "Tarn"], "built",
          "voyages", "voyage", "cargo", ["grain", "timber", "salt", "wool"], "days", (3, 90)),
    Theme("farms", "farm", "region", ["hills", "coast", "valley", "moor"], "opened",
          "animals", "animal", "species", ["goat", "cow", "sheep", "donkey"], "weight", (20, 700)),
    Theme("shops", "shop", "street", ["High Street", "Mill Lane", "Church Road", "Dock Row"], "opened",
          "orders", "purchase", "product", ["lamp", "chair", "table", "shelf"], "price", (5, 400)),
    Theme("labs", "lab", "field", ["optics", "botany", "acoustics", "geology"], "founded",
          "instruments", "instrument", "maker", ["Orlin", "Pesk", "Ruvo", "Tellan"], "cost", (10, 900)),
]  # fmt: skip


def _name(draws: Draws) -> str:
    return "".join(draws.sample(_SYLLABLES, draws.between(2, 3))).capitalize()
