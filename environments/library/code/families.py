"""Programming problems of our own: families of small functions, with parameters, in words and in Python.

A family's source is both the reference that tells what is right and the solution that a model may imitate. `$k` and the
like are parameters.
"""

from collections.abc import Callable
from string import Template
from typing import Any, NamedTuple

from environments.library.draws import Choices, Draws

FUNCTION = "solve"
LEVELS = 4

_LETTERS = "abcdefghijklmnoprstuw"
_MOST_ITEMS = 9
_LOOKED_AT, _DIFFERENT = 12, 5
"""So many inputs of a problem are looked at, and have so many different answers."""

Input = Callable[[Draws], Any]


def _numbers(draws: Draws) -> list[int]:
    return [draws.between(-20, 60) for _ in range(draws.between(0, _MOST_ITEMS))]


def _some_numbers(draws: Draws) -> list[int]:
    return [draws.between(-9, 9) for _ in range(draws.between(2, _MOST_ITEMS))]


def _number(draws: Draws) -> int:
    return draws.between(1, 10 ** draws.between(1, 4))


def _word(draws: Draws) -> str:
    return "".join(draws.pick(_LETTERS[:8]) for _ in range(draws.between(1, 7)))


def _words(draws: Draws) -> list[str]:
    return [_word(draws) for _ in range(draws.between(0, _MOST_ITEMS))]


def _text(draws: Draws) -> str:
    return " ".join(_word(draws) for _ in range(draws.between(1, 6)))


def _digits(draws: Draws) -> str:
    return "".join(draws.pick("aab0123456789") for _ in range(draws.between(1, 12)))


class Family(NamedTuple):
    """Problems that differ by their parameters."""

    name: str
    level: int
    words: str
    """What the function returns."""
    argument: str
    """Its name and type."""
    body: str
    parameters: Choices
    inputs: Input


FAMILIES = [
    Family(
        "count_multiples", 1, "how many of the numbers are divisible by $k and larger than $m", "numbers: list[int]",
        "return sum(1 for n in numbers if n % $k == 0 and n > $m)", {"k": (2, 9), "m": (-5, 20)}, _numbers,
    ),
    Family(
        "scaled", 1, "a list of the numbers, each multiplied by $k and then increased by $m", "numbers: list[int]",
        "return [n * $k + $m for n in numbers]", {"k": (2, 12), "m": (1, 40)}, _numbers,
    ),
    Family(
        "every_nth", 1, "every ${k}th number of the list, beginning with the one at index $m (the first has index 0)",
        "numbers: list[int]", "return numbers[$m::$k]", {"k": (4, 6), "m": (0, 3)}, _numbers,
    ),
    Family(
        "clipped", 1, "a list of the numbers in which each below $m is replaced by $m and each above $k by $k",
        "numbers: list[int]", "return [min(max(n, $m), $k) for n in numbers]", {"m": (-9, 9), "k": (15, 45)}, _numbers,
    ),
    Family(
        "replaced_letter", 1, "the text with each letter '$a' replaced by '$b' and the whole in capital letters",
        "text: str", "return text.replace('$a', '$b').upper()", {"a": _LETTERS[:8], "b": _LETTERS[8:]}, _text,
    ),
    Family(
        "long_words", 1, "those words that have at least $k letters or contain the letter '$a', in their order",
        "words: list[str]", "return [w for w in words if len(w) >= $k or '$a' in w]",
        {"k": (3, 6), "a": _LETTERS[:8]}, _words,
    ),
    Family(
        "digit_sum", 2, "the sum of the digits of the number written in base $k, times $m", "number: int",
        "total = 0\nwhile number:\n    total += number % $k\n    number //= $k\nreturn total * $m",
        {"k": (2, 10), "m": (1, 9)}, _number,
    ),
    Family(
        "rotated", 2, "the list, each number increased by $m, rotated to the $side by $k places", "numbers: list[int]",
        "if not numbers:\n    return []\nk = $k % len(numbers) if '$side' == 'left' else -$k % len(numbers)\n"
        "numbers = [n + $m for n in numbers]\nreturn numbers[k:] + numbers[:k]",
        {"k": (1, 12), "m": (1, 9), "side": ["left", "right"]}, _numbers,
    ),
    Family(
        "shifted_letters", 2,
        "the text with each of the letters a to z moved $k places further in the alphabet, z being followed by a; "
        "other characters stay, but each space becomes '$a'",
        "text: str",
        "moved = [chr((ord(c) - 97 + $k) % 26 + 97) if 'a' <= c <= 'z' else c for c in text]\n"
        "return ''.join(moved).replace(' ', '$a')",
        {"k": (1, 25), "a": "-_.:+"}, _text,
    ),
    Family(
        "sorted_words", 2, "the words sorted by their number of letters '$a', $most first, and then by the alphabet",
        "words: list[str]", "return sorted(words, key=lambda w: (${sign}w.count('$a'), w))",
        {"a": _LETTERS[:8], "most": ["largest", "smallest"]}, _words,
    ),
    Family(
        "chunks", 2, "the sums of the list's pieces of $k numbers (the last piece may be shorter), leaving out sums "
        "that are below $m",
        "numbers: list[int]",
        "sums = [sum(numbers[i:i + $k]) for i in range(0, len(numbers), $k)]\nreturn [s for s in sums if s >= $m]",
        {"k": (2, 4), "m": (-10, 60)}, _numbers,
    ),
    Family(
        "letter_counts", 2, "a dict from each character that occurs at least $k times in the text, except '$a', to how "
        "often it occurs",
        "text: str", "return {c: text.count(c) for c in sorted(set(text)) if c != '$a' and text.count(c) >= $k}",
        {"k": (1, 4), "a": _LETTERS[:8]}, _text,
    ),
    Family(
        "run_lengths", 3, "a list of pairs [number, length] of the list's longest stretches of neighbours that leave "
        "the same remainder when divided by $k, where number is the first of the stretch plus $m",
        "numbers: list[int]",
        "runs = []\nlast = None\nfor n in numbers:\n    if last == n % $k:\n        runs[-1][1] += 1\n    else:\n"
        "        runs.append([n + $m, 1])\n    last = n % $k\nreturn runs",
        {"k": (2, 6), "m": (0, 30)}, _some_numbers,
    ),
    Family(
        "largest_window", 3, "the largest sum of $k numbers that stand side by side in the list, plus $m; $m alone if "
        "it has fewer than $k numbers",
        "numbers: list[int]",
        "sums = [sum(numbers[i:i + $k]) for i in range(len(numbers) - $k + 1)]\nreturn max(sums) + $m if sums else $m",
        {"k": (2, 5), "m": (1, 50)}, _numbers,
    ),
    Family(
        "pairs_with_sum", 3, "how many pairs of different places in the list hold numbers whose sum leaves the "
        "remainder $m when divided by $k",
        "numbers: list[int]",
        "count = 0\nfor i in range(len(numbers)):\n    for j in range(i):\n"
        "        count += (numbers[i] + numbers[j]) % $k == $m\nreturn count",
        {"k": (5, 11), "m": (0, 4)}, _numbers,
    ),
    Family(
        "steps_to_one", 3, "how many steps it takes to get the number below $m, where a step divides it by $k (without "
        "remainder) if it is divisible by $k and else subtracts 1 from it",
        "number: int",
        "steps = 0\nwhile number >= $m:\n    number = number // $k if number % $k == 0 else number - 1\n"
        "    steps += 1\nreturn steps",
        {"k": (2, 7), "m": (1, 9)}, _number,
    ),
    Family(
        "numbers_in_text", 3, "the sum of the whole numbers written in the text (digits that follow each other are one "
        "number), leaving out those that are divisible by $k, plus $m",
        "text: str",
        "total, number = $m, ''\nfor c in text + ' ':\n    if c.isdigit():\n        number += c\n    elif number:\n"
        "        total += int(number) if int(number) % $k else 0\n        number = ''\nreturn total",
        {"k": (2, 9), "m": (0, 30)}, _digits,
    ),
]  # fmt: skip

_STEPS = [
    ("keep only the numbers that are divisible by $k", "numbers = [n for n in numbers if n % $k == 0]", (2, 4)),
    ("drop the numbers that are divisible by $k", "numbers = [n for n in numbers if n % $k]", (2, 5)),
    ("keep only the numbers larger than $k", "numbers = [n for n in numbers if n > $k]", (-15, 20)),
    ("multiply each number by $k", "numbers = [n * $k for n in numbers]", (2, 9)),
    ("add $k to each number", "numbers = [n + $k for n in numbers]", (1, 30)),
    ("subtract from each number its index in the list times $k",
     "numbers = [n - i * $k for i, n in enumerate(numbers)]", (1, 9)),
    ("replace each number by its remainder when divided by $k", "numbers = [n % $k for n in numbers]", (5, 25)),
    ("sort the list, the largest first, and keep at most $k numbers", "numbers = sorted(numbers, reverse=True)[:$k]",
     (3, 7)),
    ("reverse the list and append $k to it", "numbers = numbers[::-1] + [$k]", (1, 50)),
    ("drop each number that already stood further to the front, and then put $k in front",
     "numbers = [$k] + list(dict.fromkeys(numbers))", (1, 50)),
    ("replace the list by its running sums, each plus $k",
     "numbers = [sum(numbers[:i + 1]) + $k for i in range(len(numbers))]", (1, 9)),
]  # fmt: skip

STEPS = len(_STEPS)
"""So many steps a chain may have: each is another."""


class Chains(NamedTuple):
    """Which chains there are."""

    min_steps: int
    max_steps: int
    number: int
    """In each step, or the nearest that makes sense there; 0: any."""


class Posed(NamedTuple):
    """One problem, as far as its parameters say."""

    name: str
    """Of its family, with its parameters: short and different for each problem."""
    words: str
    argument: str
    body: str
    inputs: Input

    @property
    def source(self) -> str:
        """A function that does what is asked for."""
        lines = "".join(f"    {line}\n" for line in self.body.splitlines())
        return f"def {FUNCTION}({self.argument}):\n{lines}"

    def examples(self, seed: str, count: int) -> list[tuple[Any, Any]]:
        """So many different inputs with what is right for each, fewer where there are no more."""
        space: dict[str, Any] = {}
        exec(self.source, space)
        draws = Draws(seed)
        found: dict[str, tuple[Any, Any]] = {}
        for _ in range(20 * count):
            given = self.inputs(draws)
            found.setdefault(repr(given), (given, space[FUNCTION](given)))
            if len(found) == count:
                break
        return list(found.values())


def draw(draws: Draws, levels: tuple[int, int], chains: Chains) -> Posed:
    """A problem of one of these levels, both ends included, that no constant solves."""
    while True:
        level = draws.between(*levels)
        posed = _pipeline(draws, chains) if level == LEVELS else _of_family(draws, level)
        rights = {repr(right) for _, right in posed.examples(posed.name, _LOOKED_AT)}
        if len(rights) >= _DIFFERENT:
            return posed


def _of_family(draws: Draws, level: int) -> Posed:
    family = draws.pick([each for each in FAMILIES if each.level == level])
    chosen = draws.chosen(family.parameters)
    name = "-".join([family.name, *chosen.values()])
    # What follows from a parameter and is no choice of its own.
    told = chosen | {"sign": "-" if chosen.get("most") == "largest" else ""}
    words, body = (Template(text).substitute(told) for text in (family.words, family.body))
    return Posed(name, f"returns {words}", family.argument, body, family.inputs)


def _pipeline(draws: Draws, chains: Chains) -> Posed:
    """Several steps, one after the other."""
    places = draws.sample(range(STEPS), draws.between(chains.min_steps, chains.max_steps))
    steps = [(place, _number_of(draws, _STEPS[place][2], chains.number)) for place in places]
    told = [[Template(text).substitute(k=k) for text in _STEPS[place][:2]] for place, k in steps]
    words = "; ".join(f"({number}) {words}" for number, (words, _) in enumerate(told, 1))
    name = "-".join(["pipeline", *(f"{place}.{k}" for place, k in steps)])
    body = "\n".join([*(line for _, line in told), "return numbers"])
    return Posed(name, f"changes the list by these steps, in this order, and returns it: {words}", "numbers: list[int]",
                 body, _numbers)  # fmt: skip


def _number_of(draws: Draws, among: tuple[int, int], number: int) -> int:
    low, high = among
    return min(max(number, low), high) if number else draws.between(low, high)
