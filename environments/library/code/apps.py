"""Problems in the layout of APPS, which TACO has too, tested as their own harness tests them.

Its answers are JSON, which has no tuples; some rows wrap each of theirs in a list. What LeetCode asks for is a method
of `class Solution`, written where much is imported already.
"""

import json
from typing import Any

from environments.types import JsonObject

TYPING = "from typing import *\n"
"""What rows of all layouts name in their starters without importing it."""
_IMPORTED = (
    TYPING
    + """
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import ceil, floor, gcd, inf, log, log2, sqrt
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string, sys
"""
)
_HOLDER = "Solution"


def tested(told: Any) -> JsonObject:
    """`pairs`, or `tests` of a function, and how code is run for them. Raises ValueError."""
    both = json.loads(told) if isinstance(told, str) else told
    if (
        not isinstance(both, dict)
        or len(both.get("inputs", ())) != len(both.get("outputs", ()))
        or not both.get("inputs")
    ):
        raise ValueError("its input_output needs as many inputs as outputs, at least one")
    inputs, outputs = both["inputs"], both["outputs"]
    if not (name := both.get("fn_name")):
        return {"pairs": list(zip(inputs, outputs, strict=True)), "imported": _IMPORTED}
    if not all(isinstance(given, list) for given in inputs):
        raise ValueError(f"each of its inputs needs to be a list of arguments of {name}")
    # Only where all are wrapped: a list of one among others is what the function gives.
    are_wrapped = all(isinstance(output, list) and len(output) == 1 for output in outputs)
    rights = [f"in {[output, *output]!r}" if are_wrapped else f"== {output!r}" for output in outputs]
    calls = [f"{name}({', '.join(map(repr, given))})" for given in inputs]
    return {
        "tests": [f"assert {call} {right}" for call, right in zip(calls, rights, strict=True)],
        "functions": [name],
        "holder": _HOLDER,
        "as_json": True,
        "imported": _IMPORTED,
    }
