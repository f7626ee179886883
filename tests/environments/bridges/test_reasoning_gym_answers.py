"""What is evaluated in the place of Python, by sympy as the scorers of reasoning_gym have it."""

import pytest

from environments.bridges.reasoning_gym_answers import formula

parser = pytest.importorskip("sympy.parsing.sympy_parser")


@pytest.fixture(autouse=True)
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "eval", formula, raising=False)


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("(1 + 5) * 4 - 2**3 / 4", "22"),
        ("x**2/2 + 2.5*x - C", "-C + x**2/2 + 2.5*x"),
        ("exp(x)*sin(3*x)/sqrt(2) + log(abs(x))", "sqrt(2)*exp(x)*sin(3*x)/2 + log(Abs(x))"),
        ("max(1, Rational(1, 2)) + 4! + f(x)", "f(x) + 25"),
    ],
)
def test_a_formula_is_worth_what_sympy_makes_of_it(said: str, value: str) -> None:
    assert str(parser.parse_expr(said)) == value


@pytest.mark.parametrize(
    "said",
    [
        "(eval)('1+1')",
        "[exec][0]('x')",
        "sin('(exec)(\"1\")')",
        "(lambdify)(x, 'x')",
        "integrate(x, x)",
        "Integral(x, x)",
        "x.subs(x, 1)",
        "[y for y in (1, 2)]",
        "f'{x}'",
        "Symbol('x', commutative=False)",
    ],
)
def test_nothing_else_is_evaluated(said: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        parser.parse_expr(said)
