"""Tests of functions, read as data: which calls they make, and whether they hold for what the calls gave.

    assert solve([3, 1], key=2) == [1, 3]   ──▶  the call ["solve", [[3, 1]], {"key": 2}]  and  `_ == [1, 3]`

The policy's code runs elsewhere and answers the calls; what holds is decided here, by an evaluator that knows plain
values, operators and the harmless functions below, and nothing of Python's objects.
"""

import ast
import builtins
import json
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from environments.rewards.judged_code.runner import encoded

_MOST_ITEMS = 100_000
"""Of a sequence that an operator or `range` makes."""
_MOST_BITS = 4096
"""Of a whole number that a power makes."""
_MOST_DIGITS = 400
"""That `round` is asked for: no float has more."""

_BUILTINS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        *(abs, all, any, bool, chr, dict, divmod, float, frozenset, int, len, list, max, min),
        *(ord, set, sorted, str, sum, tuple),
    )
} | {"range": lambda *bounds: _range(*bounds), "round": lambda *asked, **named: _round(*asked, **named)}
_MATH: dict[str, Any] = {name: getattr(math, name) for name in ("inf", "isclose", "nan", "pi", "sqrt")}
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Div: operator.truediv,
    ast.Eq: operator.eq,
    ast.FloorDiv: operator.floordiv,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Mod: lambda a, b: operator.mod(_number(a), _number(b)),
    ast.Mult: lambda a, b: _times(a, b),
    ast.NotEq: operator.ne,
    ast.NotIn: lambda a, b: a not in b,
    ast.Pow: lambda a, b: _power(a, b),
    ast.Sub: operator.sub,
}
_SIGNS: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}

_FAULTS = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError)
"""Of what is evaluated."""
_HARMLESS = (ast.Import, ast.ImportFrom, ast.Pass, ast.Expr, ast.Assign)
"""Statements beside assertions that are passed over; an assertion that needs a name of theirs cannot be read."""


class Assertion:
    """One assertion about a function."""

    def __init__(self, source: str, functions: set[str], *, as_json: bool = False) -> None:
        """`as_json`: answers are taken for what JSON makes of them, as a right answer was: tuples are lists.

        Raises ValueError for a test that this cannot read, or that calls none of the functions.
        """
        try:
            [statement] = ast.parse(source.strip()).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"the test {source[:80]!r} is no single statement") from error
        if not isinstance(statement, ast.Assert):
            raise ValueError(f"the test {source[:80]!r} is no assertion")
        self._expression = statement.test
        self._as_json = as_json
        self._asked = [each for each in ast.walk(statement.test) if _name_called(each) in functions]
        if not self._asked:
            none = f"none of {', '.join(sorted(functions))}" if functions else "no function of the code"
            raise ValueError(f"the test {source[:80]!r} calls {none}")
        self.calls = [_call(each) for each in self._asked if isinstance(each, ast.Call)]
        """Function, arguments, arguments by name."""
        self._check(statement.test)

    def holds(self, answers: Sequence[Any]) -> bool:
        """Whether it is true when its calls give these values, whatever those are."""
        try:
            given = [json.loads(json.dumps(each)) for each in answers] if self._as_json else answers
            known = {id(node): answer for node, answer in zip(self._asked, given, strict=True)}
            return bool(_value(self._expression, known))
        except _FAULTS:
            return False

    def expected(self) -> Any:
        """What the one answer has to be, or among; the source of the test where it asks for more than that."""
        match self._expression:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() | ast.In()], comparators=[right]) if (
                left in self._asked
            ):
                return _value(right, {}) if right not in self._asked else ast.dump(self._expression)
            case ast.UnaryOp(op=ast.Not(), operand=operand) if operand in self._asked:
                return False
            case expression:
                return True if expression in self._asked else ast.dump(expression)

    def _check(self, whole: ast.expr) -> None:
        """Evaluate it and each part of it once, so that what cannot be read, or never has a value, is known now."""
        known = dict.fromkeys(map(id, self._asked), 0)
        parts = [whole]
        for part in parts:
            try:
                _value(part, known)
            except _Unreadable as unreadable:
                raise ValueError(f"the test {ast.unparse(whole)[:80]!r} has {unreadable} in it") from None
            except _FAULTS as fault:
                if not any(id(each) in known for each in ast.walk(part)):
                    raise ValueError(f"the test {ast.unparse(whole)[:80]!r} has {_told(part)} in it: {fault}") from None
                # Else 0 is no answer of the kind that it wants.
            if id(part) not in known:
                parts += _within(part)


class _Unreadable(Exception):
    """What the evaluator does not know."""


def split(source: str) -> list[str]:
    """The assertions of a text, also those in a function `check(candidate)`. Raises ValueError for other statements."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the tests {source[:80]!r} are no Python") from error
    found = []
    meant = _meant(statements)
    for statement in statements:
        if isinstance(statement, ast.FunctionDef):
            statement = _Renamed(meant.get(statement.name, []), statement.args).visit(statement)
        for each in statement.body if isinstance(statement, ast.FunctionDef) else [statement]:
            if isinstance(each, ast.Assert):
                is_about_calls = any(isinstance(node, ast.Call) for node in ast.walk(each.test))
                found += [ast.unparse(ast.Assert(test=each.test))] if is_about_calls else []
            elif not isinstance(each, _HARMLESS):
                raise ValueError(f"the tests have a statement of the kind {type(each).__name__} in them")
    return found


def _meant(statements: Sequence[ast.stmt]) -> dict[str, list[ast.expr]]:
    """What functions of the tests are called with, such as `check(add)`, by their names."""
    calls = [each.value for each in statements if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
    return {call.func.id: call.args for call in calls if isinstance(call.func, ast.Name)}


class _Renamed(ast.NodeTransformer):
    """Calls a parameter of a function of the tests what it was called with."""

    def __init__(self, given: Sequence[ast.expr], parameters: ast.arguments) -> None:
        named = zip((each.arg for each in parameters.args), given, strict=False)
        self._names = {name: told.id for name, told in named if isinstance(told, ast.Name)}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)


def functions_in(tests: Sequence[str], source: str) -> set[str]:
    """What the assertions of a text (`split`) call, besides what Python has and what the text imports or assigns.

    Raises ValueError for what is no Python.
    """
    found = {_name_called(node) for test in tests for node in ast.walk(ast.parse(test))}
    return found - {"", *dir(builtins), *_own_names(source)}


def _own_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _name_called(node: ast.AST) -> str:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node.func.id if is_call else ""  # type: ignore[attr-defined]


def _call(node: ast.Call) -> tuple[str, list[Any], dict[str, Any]]:
    named = {each.arg: _literal(each.value) for each in node.keywords if each.arg}
    return _name_called(node), [_literal(each) for each in node.args], named


def _literal(node: ast.expr) -> Any:
    try:
        value = _value(node, {})
        encoded(value)
    except (_Unreadable, *_FAULTS) as error:
        raise ValueError(f"the argument {ast.unparse(node)[:80]!r} is no plain value") from error
    return value


def _within(node: ast.expr) -> Iterator[ast.expr]:
    """The expressions that it is made of, but for the name of a function or a module."""
    name = getattr(node, "func", node.value if isinstance(node, ast.Attribute) else None)
    for child in ast.iter_child_nodes(node):
        inner = child.value if isinstance(child, ast.keyword) else child
        if isinstance(inner, ast.expr) and inner is not name:
            yield inner


def _value(node: ast.expr, known: dict[int, Any]) -> Any:
    if id(node) in known:
        return known[id(node)]

    def values(nodes: Sequence[ast.expr | None]) -> list[Any]:
        return [_value(each, known) for each in nodes if each is not None]

    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        case ast.List(elts=elements):
            return values(elements)
        case ast.Tuple(elts=elements):
            return tuple(values(elements))
        case ast.Set(elts=elements):
            return set(values(elements))
        case ast.Dict(keys=keys, values=contents) if None not in keys:
            return dict(zip(values(keys), values(contents), strict=True))
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_value(operand, known))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, known), _value(right, known))
        case ast.BoolOp(op=op, values=operands):
            decides = any if isinstance(op, ast.Or) else all
            return decides(_value(each, known) for each in operands)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATORS for op in ops):
            compared = values([left, *others])
            return all(_OPERATORS[type(op)](*pair) for op, pair in zip(ops, pairwise(compared), strict=True))
        case ast.Subscript(value=whole, slice=index) if not isinstance(index, ast.Slice):
            return _value(whole, known)[_value(index, known)]
        case ast.Attribute(value=ast.Name(id="math"), attr=name) if name in _MATH:
            return _MATH[name]
        case ast.Call(func=ast.Name(id=name), args=given, keywords=named) if name in _BUILTINS:
            function = _BUILTINS[name]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=name), args=given, keywords=named) if (
            name in _MATH
        ):
            function = _MATH[name]
        case _:
            raise _Unreadable(_told(node))
    return function(*values(given), **{each.arg: _value(each.value, known) for each in named if each.arg})


def _told(node: ast.expr) -> str:
    return ast.unparse(node)[:80]


def _range(*bounds: Any) -> list[int]:
    """As a list: what calls take and give are plain values."""
    numbers = range(*bounds)
    if len(numbers) > _MOST_ITEMS:
        raise ValueError("too long")
    return list(numbers)


def _round(number: Any, ndigits: int | None = None) -> Any:
    if ndigits is not None and abs(ndigits) > _MOST_DIGITS:
        raise ValueError("too many digits")
    return round(number, ndigits)


def _number(value: Any) -> Any:
    if not isinstance(value, int | float):  # of a text, % would be a format
        raise TypeError("no number")
    return value


def _times(a: Any, b: Any) -> Any:
    for sequence, count in ((a, b), (b, a)):
        if (
            isinstance(sequence, str | bytes | list | tuple)
            and isinstance(count, int)
            and len(sequence) * count > _MOST_ITEMS
        ):
            raise ValueError("too long")
    return a * b


def _power(a: Any, b: Any) -> Any:
    if isinstance(_number(a), int) and abs(a) > 1 and abs(_number(b)) * a.bit_length() > _MOST_BITS:
        raise ValueError("too large")
    return a**b
