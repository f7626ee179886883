"""What stands in the place of `eval` where scorers of reasoning_gym, and sympy for them, evaluate what was answered.

An answer is a list, or a formula, and nothing else: it can run no code, nor read what the scorer knows.
"""

import ast
from importlib import import_module
from typing import Any

_OF_LISTS = ("algorithmic.binary_matrix", "algorithmic.spiral_matrix", "algorithmic.string_insertion", "games.n_queens")
"""Modules whose scorers take a list of Python's."""
_PARTS = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop),
    *(ast.Call, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple),
)
_FUNCTIONS = frozenset({"abs", "cbrt", "pow", "root", "round", "sqrt", "sum"})
"""What else a formula may call; the functions of sympy that solve, as `integrate` does, are no formula."""


def guard() -> None:
    """Shadow `eval` in the modules that need not have all of it."""
    for name in _OF_LISTS:
        vars(import_module(f"reasoning_gym.{name}"))["eval"] = ast.literal_eval
    vars(import_module("sympy.parsing.sympy_parser"))["eval"] = formula


def formula(code: str, names: dict[str, Any], local: dict[str, Any]) -> Any:
    """As `eval`, of what sympy makes of a formula. Raises ValueError for all else, SyntaxError for no Python.

    Functions turn text among their arguments into formulas by sympy's parser, which comes here again.
    """
    tree = ast.parse(code.strip(), mode="eval")
    known = names | local
    for node in ast.walk(tree):
        if not isinstance(node, _PARTS) or (isinstance(node, ast.Call) and not _may_call(node, known)):
            raise ValueError(f"{ast.unparse(node)} is no part of a formula")
    return eval(compile(tree, "<answer>", "eval"), names, local)


def _may_call(call: ast.Call, known: dict[str, Any]) -> bool:
    if call.keywords:
        return False
    if isinstance(call.func, ast.Call):  # a function without a definition: `Function('f')(x)`
        return isinstance(call.func.func, ast.Name) and call.func.func.id == "Function"
    if not isinstance(call.func, ast.Name):
        return False
    sympy, called = import_module("sympy"), known.get(call.func.id)
    values = (sympy.Add, sympy.AtomicExpr, sympy.Mul, sympy.Pow, sympy.core.function.Application)
    return call.func.id in _FUNCTIONS or (isinstance(called, type) and issubclass(called, values))
