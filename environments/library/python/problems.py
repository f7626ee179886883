"""Sums too large for the head, each with a short program that finds the answer.

`$k` and the like are drawn. A family's program is both the reference and what a solution calls the tool with.
"""

from string import Template
from typing import NamedTuple

from environments.library.draws import Choices, Draws

LEVELS = 3


class Sum(NamedTuple):
    """What is asked, and a program that prints the answer."""

    name: str
    """Short, and different for each problem."""
    words: str
    program: str

    @property
    def answer(self) -> str:
        """What the program prints."""
        printed: list[object] = []
        exec(self.program, {"print": printed.append})
        return str(printed[-1])


class _Family(NamedTuple):
    name: str
    level: int
    words: str
    program: str
    parameters: Choices


_IS_PRIME = "def is_prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))\n"
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

_FAMILIES = [
    _Family("digits", 1, "What is the sum of the decimal digits of $a to the power of $k?",
            "print(sum(map(int, str($a ** $k))))", {"a": (3, 99), "k": (40, 300)}),
    _Family("multiples", 1, "What is the sum of all whole numbers from 1 to $n that are divisible by $a or by $b, but "
            "not by $c?",
            "print(sum(n for n in range(1, $n + 1) if (n % $a == 0 or n % $b == 0) and n % $c))",
            {"a": (3, 9), "b": (10, 19), "c": (20, 60), "n": (500, 5_000)}),
    _Family("remainder", 1, "What is the remainder of $a to the power of $k, divided by $m?",
            "print(pow($a, $k, $m))", {"a": (100, 9_999), "k": (1_000, 99_999), "m": (1_000, 99_999)}),
    _Family("trailing", 1, "With how many zeros does the decimal number $k! / $m! (factorials) end?",
            "from math import factorial\ndigits = str(factorial($k) // factorial($m))\n"
            "print(len(digits) - len(digits.rstrip('0')))", {"k": (150, 600), "m": (5, 140)}),
    _Family("palindromes", 1, "How many whole numbers from $a to $n read the same backwards and are divisible by $k?",
            "print(sum(1 for n in range($a, $n + 1) if str(n) == str(n)[::-1] and n % $k == 0))",
            {"a": (10, 999), "n": (2_000, 20_000), "k": (2, 9)}),
    _Family("primes", 2, "How many prime numbers p with $a <= p <= $n leave the remainder $m when divided by $k?",
            _IS_PRIME + "print(sum(1 for n in range($a, $n + 1) if is_prime(n) and n % $k == $m))",
            {"a": (100, 999), "n": (2_000, 8_000), "k": ["8", "10", "14", "16"], "m": ["1", "3"]}),
    _Family("days", 2, "How many days lie between $d $month $y and 17 $later $z, the second day counted and the first "
            "not, that are no $day?",
            "from datetime import date, timedelta\n"
            "first, last = (date(int(y), m, d) for y, m, d in (('$y', $mm, $d), ('$z', $ll, 17)))\n"
            "days = (first + timedelta(n) for n in range(1, (last - first).days + 1))\n"
            "print(sum(1 for day in days if day.weekday() != $w))",
            {"d": (1, 28), "mm": (1, 12), "ll": (1, 12), "y": (1990, 2009), "z": (2010, 2016), "w": (0, 6)}),
    _Family("thirteenths", 2, "On how many days from 1 January $y to 31 December $z is it a $day and the day of the "
            "month $d?",
            "from datetime import date\n"
            "print(sum(date(y, m, $d).weekday() == $w for y in range($y, $z + 1) for m in range(1, 13)))",
            {"d": (1, 28), "y": (1901, 1960), "z": (1990, 2060), "w": (0, 6)}),
    _Family("coins", 2, "In how many ways can $n be paid with any number of coins of the values 1, $a, $b and $c, "
            "where the order does not count?",
            "ways = [1] + [0] * $n\nfor coin in (1, $a, $b, $c):\n    for n in range(coin, $n + 1):\n"
            "        ways[n] += ways[n - coin]\nprint(ways[$n])",
            {"a": (2, 5), "b": (6, 11), "c": (12, 25), "n": (80, 400)}),
    _Family("paths", 2, "A piece goes from the bottom left corner of a grid of $a by $b squares to the top right one, "
            "each step one square to the right or one up, and never enters the square in column $c, row $c (both "
            "counted from 1 at the bottom left). In how many ways?",
            "ways = {(0, 1): 1}\nfor x in range(1, $a + 1):\n    for y in range(1, $b + 1):\n"
            "        both = ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)\n"
            "        ways[x, y] = 0 if x == y == $c else both\nprint(ways[$a, $b])",
            {"a": (9, 18), "b": (9, 18), "c": (2, 8)}),
    _Family("generator", 3, "A number begins as $s. In each step it is multiplied by $a, $k is added, and it is "
            "replaced by its remainder when divided by $m. How many of the first $n numbers after the beginning are "
            "odd?",
            "number, odd = $s, 0\nfor _ in range($n):\n    number = (number * $a + $k) % $m\n    odd += number % 2\n"
            "print(odd)", {"s": (1, 99), "a": (5, 99), "k": (3, 99), "m": (1_001, 9_999), "n": (200, 5_000)}),
    _Family("collatz", 3, "A step halves a number if it is even, and else multiplies it by 3 and adds 1. How many "
            "steps do the numbers from $a to $n take together, each until it reaches 1?",
            "def steps(n):\n    count = 0\n    while n > 1:\n        n = 3 * n + 1 if n % 2 else n // 2\n"
            "        count += 1\n    return count\n\nprint(sum(map(steps, range($a, $n + 1))))",
            {"a": (10, 999), "n": (1_050, 1_700)}),
    _Family("circle", 3, "$n people stand in a circle, numbered from 1. Beginning to count at person 1, every ${k}th "
            "leaves, and the count goes on behind them, until $m are left. What is the sum of the numbers of those?",
            "people = list(range(1, $n + 1))\nat = 0\nwhile len(people) > $m:\n    at = (at + $k - 1) % len(people)\n"
            "    people.pop(at)\nprint(sum(people))", {"n": (40, 400), "k": (4, 19), "m": (2, 6)}),
    _Family("queue", 3, "A customer comes to a counter every $a minutes, the first at minute 0, $n of them in all. "
            "Serving takes $b minutes, but each ${k}th customer takes $c minutes longer. One is served at a time, in "
            "order. How many minutes do they wait in all before they are served?",
            "free = waited = 0\nfor number in range(1, $n + 1):\n    came = (number - 1) * $a\n"
            "    begins = max(came, free)\n    waited += begins - came\n"
            "    free = begins + $b + ($c if number % $k == 0 else 0)\nprint(waited)",
            {"a": (3, 9), "b": (3, 9), "c": (5, 40), "k": (4, 9), "n": (50, 300)}),
    _Family("factor", 3, "What is the sum of the prime factors of $a * $b + $c, each counted as often as it divides?",
            "n, total, d = $a * $b + $c, 0, 2\nwhile d * d <= n:\n    while n % d == 0:\n        total += d\n"
            "        n //= d\n    d += 1\nprint(total + (n if n > 1 else 0))",
            {"a": (1_000, 9_999), "b": (1_000, 9_999), "c": (1, 999)}),
]  # fmt: skip

_MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December"]  # fmt: skip


def draw(draws: Draws, levels: tuple[int, int]) -> Sum:
    """A problem of one of these levels, both ends included."""
    level = draws.between(*levels)
    family = draws.pick([each for each in _FAMILIES if each.level == level])
    chosen = draws.chosen(family.parameters)
    names = {"day": _DAYS[int(chosen.get("w", 0))], "month": _month(chosen, "mm"), "later": _month(chosen, "ll")}
    words, program = (Template(text).substitute(chosen | names) for text in (family.words, family.program))
    return Sum("-".join([family.name, *chosen.values()]), words, program)


def _month(chosen: dict[str, str], name: str) -> str:
    return _MONTHS[int(chosen.get(name, 1)) - 1]
