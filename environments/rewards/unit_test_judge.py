"""A program that runs in a sandbox: hidden tests against code of the policy, which lives in processes of its own.

    environment ── tests, a word ──▶ judge ── calls, as literals ──▶ caller: this file again, with the policy's code
                ◀── "word 0 1" ────       ◀── values, as literals ──

The code never sees a test, only calls; what it gives back is a plain value, so that `==` is Python's and not its own. A
report counts only with the word, which nobody can read here: memory and descriptors of the judge are closed to others.
Standard library only.
"""

import ast
import builtins
import ctypes
import json
import math
import os
import select
import subprocess
import sys
from typing import Any

CODE = "solution.py"
_PLAIN: tuple[Any, ...] = (bool, int, float, complex, str, bytes)
_DEEPEST = 50
_MOST_BYTES = 2**20
"""Of a value that comes back."""
_PR_SET_DUMPABLE = 4


class CallFailed(Exception):
    """The code raised what is no exception of Python's own, or gave no plain value, or died."""


class CallTooLong(BaseException):
    """It took too long. No test is to catch it."""


class Solution:
    """A process with the policy's code, started when it is first called, and again after it died or hung."""

    def __init__(self, test_s: float) -> None:
        self._test_s = test_s
        self._process: subprocess.Popen[bytes] | None = None
        self._asking = self._listening = -1

    def call(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call a function of it with plain values, for a plain value."""
        question = json.dumps(literal([name, arguments, named])).encode() + b"\n"
        if self._process is None:
            self._start()
        try:
            self._write(question)
            return ast.literal_eval(self._answer())
        except (OSError, CallFailed, CallTooLong):
            self.stop()
            raise

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            os.close(self._asking)
            os.close(self._listening)
            self._process = None

    def _start(self) -> None:
        theirs_in, self._asking = os.pipe()
        self._listening, theirs_out = os.pipe()
        self._process = subprocess.Popen(
            ["python3", __file__, str(theirs_in), str(theirs_out)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            self._answer()
        except BaseException:
            self.stop()
            raise

    def _write(self, question: bytes) -> None:
        while question:
            if not select.select([], [self._asking], [], self._test_s)[1]:
                raise CallTooLong
            question = question[os.write(self._asking, question[: select.PIPE_BUF]) :]

    def _answer(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._listening], [], [], self._test_s)[0]:
                raise CallTooLong
            piece = os.read(self._listening, 2**16)
            line += piece
            if not piece or len(line) > _MOST_BYTES:
                raise CallFailed("it died, or said too much")
        try:
            kind, what = map(str, json.loads(line))
        except (ValueError, RecursionError, TypeError) as error:
            raise CallFailed("it said something else") from error
        if kind == "value":
            return what
        found = getattr(builtins, what, None)
        raise found() if isinstance(found, type) and issubclass(found, Exception) else CallFailed(what)


class Calling:
    """A function of the policy's, as tests see it."""

    def __init__(self, solution: Solution, name: str) -> None:
        self._solution = solution
        self.__name__ = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it."""
        return self._solution.call(self.__name__, arguments, named)


def passes(test: Any, solution: Solution, test_s: float) -> bool:
    """Whether the code passes a test: Python with asserts, or an object with `stdin` and `stdout`."""
    if isinstance(test, dict):
        return _prints(test["stdin"], test["stdout"], test_s)
    try:
        space = {"__name__": "test"} | {name: Calling(solution, name) for name in _unknown_names(test)}
        exec(compile(test, "test", "exec"), space)
    except (Exception, CallTooLong, SystemExit):  # noqa: BLE001 - a test says no by raising
        return False
    return True


def _unknown_names(test: str) -> set[str]:
    """What a test uses, and neither defines nor finds among Python's own: the policy's."""
    used: set[str] = set()
    defined = set(dir(builtins))
    for node in ast.walk(ast.parse(test)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
    return used - defined


def _prints(stdin: str, stdout: str, test_s: float) -> bool:
    try:
        done = subprocess.run(
            ["python3", CODE],
            input=stdin.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=test_s,
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        return False
    return _lines(done.stdout.decode(errors="replace")) == _lines(stdout)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def literal(value: Any, depth: int = 0) -> str:
    """A plain value as `ast.literal_eval` reads it. Raises TypeError for any other."""
    if depth > _DEEPEST:
        raise TypeError(f"a value of more than {_DEEPEST} levels")
    if isinstance(value, dict):
        pairs = (f"{literal(key, depth + 1)}: {literal(each, depth + 1)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple | set | frozenset):
        opening, closing = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
        inner = "".join(f"{literal(each, depth + 1)}, " for each in value)
        return f"{opening}{inner}{closing}" if inner or opening != "{" else "set()"
    if value is None or type(value) in _PLAIN:
        is_infinite = isinstance(value, float) and math.isinf(value)
        return repr(value).replace("inf", "1e999") if is_infinite else repr(value)
    if hasattr(value, "tolist"):  # of numpy
        return literal(value.tolist(), depth + 1)
    for kind in _PLAIN:
        if isinstance(value, kind):
            return repr(kind(value))
    raise TypeError(f"a {type(value).__name__} is no plain value")


def judge() -> None:
    """Read tests and the word, and report on each test as soon as it is run."""
    # From here on nobody reads its memory, nor opens its pipes by way of /proc.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    asked = json.load(sys.stdin)
    solution = Solution(asked["test_s"])
    for number, test in enumerate(asked["tests"]):
        passed = passes(test, solution, asked["test_s"])
        sys.stdout.write(f"{asked['word']} {number} {passed:d}\n")
        sys.stdout.flush()
    solution.stop()


def caller(asked: int, told: int) -> None:
    """Load the policy's code and call its functions as asked."""

    def tell(kind: str, what: str) -> None:
        os.write(told, json.dumps([kind, what]).encode() + b"\n")

    space: dict[str, Any] = {"__name__": "solution"}
    try:
        with open(CODE, encoding="utf-8") as file:
            exec(compile(file.read(), CODE, "exec"), space)
        tell("value", "")
    except BaseException as error:  # noqa: BLE001 - of anybody's code
        tell("raised", type(error).__name__)
        return
    for line in os.fdopen(asked):
        name, arguments, named = ast.literal_eval(json.loads(line))
        try:
            tell("value", literal(space[name](*arguments, **named)))
        except BaseException as error:  # noqa: BLE001 - of anybody's code
            tell("raised", type(error).__name__)


if __name__ == "__main__":
    caller(*map(int, sys.argv[1:])) if sys.argv[1:] else judge()
