"""An invented world: rivers, towns, companies and people, a paragraph about each, and questions about them.

Everything follows from a seed. Questions need one fact, or two facts of two paragraphs, or three.
"""

from typing import NamedTuple

from environments.library.draws import Draws

HOPS = 3

_BEGINNINGS = ["Al", "Bre", "Cor", "Dun", "Es", "Fal", "Gor", "Hol", "Is", "Jor", "Kel", "Lor", "Mar", "Nev", "Or",
               "Pel", "Quen", "Ros", "Sel", "Tor", "Ul", "Ven", "Wes", "Yar", "Zel"]  # fmt: skip
_MIDDLES = ["a", "bi", "da", "e", "ga", "i", "la", "li", "ma", "ni", "o", "ra", "ri", "sa", "te", "va", "vi"]
_OF_TOWNS = ["burg", "dale", "ford", "haven", "mouth", "stead", "ton", "wick"]
_OF_RIVERS = ["ne", "sse", "ver", "wen", "ya"]
_OF_PEOPLE = ["bert", "da", "lin", "na", "ric", "s", "sa", "ton", "vin", "ya"]
_OF_COMPANIES = ["Brothers", "Works", "and Sons", "Union", "Mills"]
_RANGES = ["the Grey Heights", "the Lantern Hills", "the Northern Teeth", "the Salt Ridge", "the Owl Mountains",
           "the Broken Downs"]  # fmt: skip
_SEAS = ["the Amber Sea", "the Gulf of Sorrow", "the Western Ocean", "the Bay of Kites"]
_PRODUCTS = ["clocks", "ropes", "paper", "glass lenses", "boots", "violins", "beehives", "kettles", "maps", "lamp oil",
             "saddles", "bells"]  # fmt: skip
_TRADES = ["astronomy", "baking", "bookbinding", "botany", "carpentry", "cartography", "composing", "engineering",
           "glassblowing", "midwifery", "millinery", "painting", "physic", "poetry", "sailing", "sculpture",
           "shepherding", "surveying", "teaching", "weaving"]  # fmt: skip


class HopQuestion(NamedTuple):
    """What is asked, the answer, and the titles of the paragraphs that say it, in the order of asking."""

    words: str
    answer: str
    titles: list[str]
    hops: int


class InventedWorld(NamedTuple):
    """Paragraphs by title, and all questions."""

    paragraphs: dict[str, str]
    questions: list[HopQuestion]


def made(seed: str, size: int, hops: tuple[int, int]) -> InventedWorld:
    """A world of `size` paragraphs: 1 in 50 a river, 1 in 8 a town, 1 in 8 a company, the others people.

    `hops`: the fewest and the most paragraphs that a question takes.
    """
    draws, names = Draws(seed), set[str]()

    def named(endings: list[str], join: str = "") -> str:
        while True:
            middle = "".join(draws.sample(_MIDDLES, draws.between(1, 2)))
            name = draws.pick(_BEGINNINGS) + middle + join + draws.pick(endings)
            if name not in names:
                names.add(name)
                return name

    facts: dict[str, dict[str, str]] = {}
    rivers = [named(_OF_RIVERS) for _ in range(max(size // 50, 4))]
    towns = [named(_OF_TOWNS) for _ in range(max(size // 8, 8))]
    companies = [named(_OF_COMPANIES, " ") for _ in range(max(size // 8, 8))]
    people = [f"{named(_OF_PEOPLE)} {named(_OF_PEOPLE)}" for _ in range(max(size - len(rivers) - 2 * len(towns), 16))]
    for river in rivers:
        facts[river] = {"source": draws.pick(_RANGES), "mouth": draws.pick(_SEAS), "length": _count(draws, 40, 900)}
    for town in towns:
        facts[town] = {
            "river": draws.pick(rivers), "founded": _count(draws, 810, 1790), "inhabitants": _count(draws, 400, 90_000),
            "mayor": draws.pick(people),
        }  # fmt: skip
    for company in companies:
        facts[company] = {
            "seat": draws.pick(towns),
            "product": draws.pick(_PRODUCTS),
            "began": _count(draws, 1700, 1899),
        }
    for person in people:
        facts[person] = {
            "birthplace": draws.pick(towns), "born": _count(draws, 1800, 1899), "trade": draws.pick(_TRADES),
            "employer": draws.pick(companies),
            "teacher": next(each for each in draws.sample(people, 2) if each != person),
        }  # fmt: skip
    kinds = {"river": rivers, "town": towns, "company": companies, "person": people}
    paragraphs = {title: _SENTENCES[kind].format(name=title, **facts[title]) for kind in kinds for title in kinds[kind]}
    return InventedWorld(paragraphs, _questions(kinds, facts, hops))


_SENTENCES = {
    "river": "{name} is a river. It rises in {source}, is {length} kilometres long and flows into {mouth}.",
    "town": "{name} is a town on the river {river}. It was founded in the year {founded} and has {inhabitants} "
    "inhabitants. Its mayor is {mayor}.",
    "company": "{name} is a company that makes {product}. It has its seat in {seat} and began its work in {began}.",
    "person": "{name} (born in {born}) is from {birthplace}. The trade of {name} is {trade}; {name} works for "
    "{employer} and learned from {teacher}.",
}
# What may be asked of a thing, and what leads from it to another thing: property -> (words, kind of thing).
_ASKED = {
    "river": {"source": "Where does {it} rise?", "mouth": "Into what does {it} flow?",
              "length": "How many kilometres long is {it}?"},
    "town": {"founded": "In which year was {it} founded?", "inhabitants": "How many inhabitants does {it} have?"},
    "company": {"product": "What does {it} make?", "began": "In which year did {it} begin its work?"},
    "person": {"born": "In which year was {it} born?", "trade": "What is the trade of {it}?"},
}  # fmt: skip
_LEADS = {
    "town": {"river": ("the river on which {it} lies", "river"), "mayor": ("the mayor of {it}", "person")},
    "company": {"seat": ("the town in which {it} has its seat", "town")},
    "person": {"birthplace": ("the town that {it} is from", "town"), "employer": ("the company that {it} works for",
               "company"), "teacher": ("the person from whom {it} learned", "person")},
    "river": {},
}  # fmt: skip


def _questions(
    kinds: dict[str, list[str]], facts: dict[str, dict[str, str]], between: tuple[int, int]
) -> list[HopQuestion]:
    found = []
    for kind, titles in kinds.items():
        for title in titles:
            ways = [(kind, title, title, [title])]
            for hops in range(1, between[1] + 1):
                for its_kind, its_title, it, path in ways:
                    found += [
                        HopQuestion(words.format(it=it), facts[its_title][asked], path, hops)
                        for asked, words in (_ASKED[its_kind] if hops >= between[0] else {}).items()
                    ]
                ways = [
                    (next_kind, facts[its_title][lead], words.format(it=it), [*path, facts[its_title][lead]])
                    for its_kind, its_title, it, path in ways
                    for lead, (words, next_kind) in _LEADS[its_kind].items()
                ]
    return found


def _count(draws: Draws, low: int, high: int) -> str:
    return str(draws.between(low, high))
