"""Assertions as data: what they call, and whether they hold for what was answered."""

import json
from collections import Counter, defaultdict
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import pytest

from environments.rewards.judged_code.assertions import Assertion, functions_in, split
from environments.rewards.judged_code.runner import decoded, encoded

HUMAN_EVAL = """
METADATA = {'author': 'x'}

def check(candidate):
    import math
    assert candidate([1, 2]) == 3, "words"
    assert True, "always"
    assert abs(candidate(5) - 0.5) < 1e-6
"""


@pytest.mark.parametrize(
    ("source", "answers", "holds"),
    [
        ("assert f(1) == 2", [2], True),
        ("assert f(1) == 2", [3], False),
        ("assert f(1) == 2, 'words'", ["2"], False),
        ("assert f((1, 2)) == (2, 1)", [[2, 1]], False),
        ("assert f(1) == {1, 2}", [{2, 1}], True),
        ("assert f(1)", [True], True),
        ("assert not f(1)", [True], False),
        ("assert f(1) is None", [None], True),
        ("assert set(f([1, 1])) == {1}", [[1, 1]], True),
        ("assert abs(f(1) - 0.5) < 1e-6", [0.5], True),
        ("assert math.isclose(f(1), 1 / 3, rel_tol=0.001)", [0.3333], True),
        ("assert f(1) == f(2)", [4, 4], True),
        ("assert f(1) == f(2)", [4, 5], False),
        ("assert sorted(f(1), reverse=True) == [2, 1]", [[1, 2]], True),
        ("assert f(1)[0] == 'a' and len(f(1)) == 2", ["ab", "ab"], True),
        ("assert 1 < f(1) <= 3", [3], True),
        ("assert f(3) == list(range(3))", [[0, 1, 2]], True),
        ("assert f(3) == list(range(3))", [[0, 1]], False),
        ("assert f(1) == list(range(f(2)))", [[], 10**12], False),
        ("assert f('a') == chr(ord('a') + 1)", ["b"], True),
        ("assert f(1) * 10 ** 3 == 2000", [2], True),
        ("assert f(100) == 2 ** 100", [2**100], True),
        ("assert round(f(1), ndigits=1) == 0.3", [0.26], True),
        ("assert f(1) in [1, 2]", [2], True),
        # What the answer is not fit for is wrong, and no error.
        ("assert abs(f(1)) == 1", ["x"], False),
        ("assert f(1)[0] == 1", [[]], False),
        ("assert set(f(1)) == {1}", [[[1]]], False),
        ("assert f(1) * 1000000 == 'x'", ["x" * 1000], False),
        ("assert f(1) % 'x' == 'x'", ["%999999999d"], False),
        ("assert 10 ** f(1) == 1", [10**9], False),
        ("assert f(1) == 1.0", [float("nan")], False),
    ],
)
def test_an_assertion_holds_for_the_right_answers_only(source: str, answers: list[Any], holds: bool) -> None:
    test = Assertion(source, {"f"})
    assert len(test.calls) == len(answers)
    assert test.holds(answers) is holds


def test_calls_have_the_arguments_that_the_assertion_writes() -> None:
    test = Assertion("assert f([1, -2.5], {'a': (1,)}, key=[0] * 3, other=math.inf) == 1", {"f"})
    assert test.calls == [("f", [[1, -2.5], {"a": (1,)}], {"key": [0, 0, 0], "other": float("inf")})]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("assert g(1) == 2", "calls none of f"),
        ("f(1)", "no assertion"),
        ("assert f(1) == 2; import os", "no single statement"),
        ("assert f(", "no single statement"),
        ("assert f(open('x')) == 2", "no plain value"),
        ("assert f(1) == open('x')", "open"),
        ("assert f(1).__class__ == 1", "__class__"),
        ("assert f(1) == [n for n in [1]]", "for n in"),
        ("assert f(1) == eval('1')", "eval"),
        ("assert f(f(1)) == 1", "no plain value"),
        ("assert f(math.sqrt) == 1", "no plain value"),
        # Nor where what stands before it cannot be evaluated without an answer, or decides by itself.
        ("assert f(1)[0] == hash('x')", "hash"),
        ("assert f(1) and open('x')", "open"),
        # What no answer would make true is no test.
        ("assert f(1) == 2 ** 100000", "2 \\*\\* 100000.*too large"),
        ("assert f(1) == round(5, -10 ** 9)", "too many digits"),
        ("assert f(1) == b'a' * 10 ** 9", "too long"),
        ("assert f(1) == list(range(10 ** 12))", "too long"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(source: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Assertion(source, {"f"})


def test_tests_are_split_into_the_assertions_about_something() -> None:
    found = split(HUMAN_EVAL)
    assert found == ["assert candidate([1, 2]) == 3", "assert abs(candidate(5) - 0.5) < 1e-06"]
    assert functions_in(found, HUMAN_EVAL) == {"candidate"}
    with pytest.raises(ValueError, match="For"):
        split("def check(candidate):\n    for n in range(9):\n        assert candidate(n) == n")


@pytest.mark.parametrize(
    ("tests", "refused"),
    [
        ("assert f(5) == hash(5)", "hash"),
        ("from math import sqrt\nassert f(4) == sqrt(4)", "sqrt"),
        ("import os.path as place\nnear = place.samefile\nassert near(f(4), 4)", "near"),
        ("assert hash(3) == 3", "no function of the code"),
    ],
)
def test_what_python_or_the_tests_themselves_name_is_no_function_of_the_code(tests: str, refused: str) -> None:
    [source] = split(tests)
    assert functions_in([source], tests) <= {"f"}
    with pytest.raises(ValueError, match=refused):
        Assertion(source, functions_in([source], tests))


def test_an_answer_taken_as_json_is_what_json_makes_of_it() -> None:
    test = Assertion("assert f(1) == [[1, 2], {'3': None}]", {"f"}, as_json=True)
    assert test.holds([([1, 2], {3: None})])
    assert not any(test.holds([each]) for each in (([2, 1], {3: None}), [{1, 2}, {3: None}], {(1, 2): 3}))


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1.5, "é\n", [1, [2]], (1, (2,)), {1, 2}, frozenset({"a"}), {"a": {1: (2,)}, (1, 2): [3]}, {}, ()],
)
def test_values_are_the_same_after_the_way_through_json(value: Any) -> None:
    told = decoded(encoded(value))
    assert told == value
    assert type(told) is type(value)


class Level(IntEnum):
    LOW = 1


class Colour(Enum):
    RED = 1


class Place(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("value", "plain"),
    [(Counter("aab"), {"a": 2, "b": 1}), (defaultdict(int, a=1), {"a": 1}), (Place(3), (3,)), (Level.LOW, 1)],
)
def test_a_value_that_is_a_kind_of_a_plain_one_is_that(value: Any, plain: Any) -> None:
    told = decoded(json.loads(json.dumps(encoded(value))))
    assert told == plain
    assert type(told) is type(plain)


@pytest.mark.parametrize("told", [{"object": []}, {"dict": 3}, {"set": [[1]]}, {"a": 1, "b": 2}, {"tuple": 1}])
def test_what_is_no_value_is_refused(told: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        decoded(told)


@pytest.mark.parametrize("value", [object(), 1j, range(3), Colour.RED, map(abs, [1])])
def test_what_is_no_plain_value_does_not_leave_the_sandbox(value: Any) -> None:
    with pytest.raises(TypeError, match="no plain value"):
        encoded(value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("assert f(1) == [1, 2]", [1, 2]),
        ("assert f(1) is None", None),
        ("assert f(1)", True),
        ("assert not f(1)", False),
        ("assert f(1) in [[0], 0]", [[0], 0]),
    ],
)
def test_a_plain_assertion_knows_the_one_right_answer(source: str, expected: Any) -> None:
    assert Assertion(source, {"f"}).expected() == expected


def test_assertions_that_ask_for_more_have_no_right_answer_in_common() -> None:
    sources = ["assert f(1) == f(2)", "assert f(1) == f(3)", "assert f(1) > 2", "assert len(f(1)) == 2"]
    assert len({Assertion(source, {"f"}).expected() for source in sources}) == len(sources)
