"""Runs what the policy wrote, inside of a sandbox: calls its function, or feeds its program. Standard library only.

    stdin   {"code", "calls": [[function, [argument, ...], {name: argument}], ...], "inputs": [text, ...], ...}
    stdout  [number, "value", encoded], [number, "output", text] or [number, "failed", why], a line each

Each call has a process of its own, so none can spoil another's, and so many seconds of the processor, which are the
same on a busy machine. Nothing here knows a right answer.
"""

import atexit
import json
import os
import select
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

BUSY = 5
"""Times its seconds of the processor that a call may take of the clock: where others want the processor too, and for
what waits in vain."""
_LOOK_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CHUNK_BYTES = 65_536
_PLAIN = (bool, int, float, str, type(None))
_GROUPS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_imported: dict[str, Any] = {}
"""Names that the policy's code finds there."""


def encoded(value: Any) -> Any:
    """A value as JSON that says what it was, or a kind of: a Counter is a dictionary. Raises TypeError for what
    is no plain data, RecursionError."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list):
        return [encoded(each) for each in list.__iter__(value)]
    if isinstance(value, dict):
        return {"dict": [[encoded(key), encoded(each)] for key, each in dict.items(value)]}
    for name, kind in _GROUPS.items():
        if isinstance(value, kind):
            return {name: [encoded(each) for each in kind.__iter__(value)]}
    if isinstance(value, bytes):
        return {"bytes": bytes.hex(value)}
    if hasattr(value, "tolist"):  # of numpy
        return encoded(value.tolist())
    raise TypeError(f"a {type(value).__name__} is no plain value")


def decoded(told: Any) -> Any:
    """The value. Raises ValueError, TypeError for what none was encoded as, RecursionError."""
    if isinstance(told, list):
        return [decoded(each) for each in told]
    if not isinstance(told, dict):
        return told
    [(kind, content)] = told.items()
    if kind == "dict":
        return {decoded(key): decoded(value) for key, value in content}
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind not in _GROUPS:
        raise ValueError(f"there is no kind of value called {kind!r}")
    return _GROUPS[kind](decoded(each) for each in content)


def _call(code: str, holder: str, writer: int, function: str, arguments: list[Any], named: dict[str, Any]) -> None:
    _redirect(os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY))
    positional, by_name = [decoded(each) for each in arguments], {name: decoded(each) for name, each in named.items()}
    names = _executed(code, "solution")
    found = getattr(names[holder](), function) if holder in names else names[function]
    answer = json.dumps(encoded(found(*positional, **by_name))).encode()
    while answer:
        answer = answer[os.write(writer, answer) :]


def _feed(code: str, writer: int, given: str) -> None:
    reader = os.open("stdin", os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
    os.write(reader, given.encode())
    os.lseek(reader, 0, os.SEEK_SET)
    _redirect(reader, writer)
    try:
        _executed(code, "__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
    finally:  # as the interpreter ends a program, which `os._exit` does not
        threading._shutdown()  # type: ignore[attr-defined]  # waits for what it started
        atexit._run_exitfuncs()
        sys.stdout.flush()


def _executed(code: str, name: str) -> dict[str, Any]:
    """The names of a module of this code."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(_imported)
    exec(compile(code, "solution.py", "exec"), module.__dict__)
    return module.__dict__


def _redirect(reader: int, writer: int) -> None:
    """What the policy's code reads and prints."""
    silence = os.open(os.devnull, os.O_WRONLY)
    for source, target in ((reader, 0), (writer, 1), (silence, 2)):
        os.dup2(source, target)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(each, mode, closefd=False) for each, mode in enumerate("rww"))


def _answer_of(run: Callable[[int], None], most_s: float, most_bytes: int) -> tuple[bytes | None, str]:
    """What a child writes, and why that is nothing."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        status = 1
        try:
            os.setsid()
            os.close(reader)
            run(writer)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    content, failure, began = b"", "", time.monotonic()
    watched = [reader, ended := os.pidfd_open(child)]
    try:
        while not failure:
            ready, _, _ = select.select(watched, [], [], max(began + most_s - time.monotonic(), _LOOK_S))
            chunk = os.read(reader, _CHUNK_BYTES) if reader in ready else b""
            content += chunk
            if len(content) > most_bytes:
                failure = "wrote too much"
            elif _has_had_its_time(child, time.monotonic() - began, most_s):
                failure = "took too long"
            elif ended in ready and not chunk:
                break
            elif reader in ready and not chunk:  # it has closed its end, and goes on
                watched.remove(reader)
    finally:
        if os.getpgid(child) == child:  # else it has not got so far as to lead a group of its own
            os.killpg(child, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(ended)
        os.close(reader)
    if failure or status:
        return None, failure or "raised"
    return content, ""


def _has_had_its_time(child: int, past_s: float, most_s: float) -> bool:
    """Whether a call must end. Never before `most_s` of the clock: on several processors it may have used more."""
    return past_s > most_s and (past_s > BUSY * most_s or _processor_s(child) > most_s)


def _processor_s(leader: int) -> float:
    """Of a process and those of its group, with those that they started and waited for."""
    ticks = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # gone
            continue
        if fields[2:3] == [str(leader)]:
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_PER_S


def main() -> None:
    """Answer what stdin asks for."""
    asked = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    os.set_inheritable(out, False)
    code, calls = asked["code"], len(asked["calls"])
    exec(asked["imported"], _imported)  # once: what it imports takes time
    for number, given in enumerate([*asked["calls"], *asked["inputs"]]):
        by_calls = number < calls

        def run(writer: int, given: Any = given, by_calls: bool = by_calls) -> None:
            os.close(out)
            _call(code, asked["holder"], writer, *given) if by_calls else _feed(code, writer, given)

        try:
            content, failure = _answer_of(run, asked["most_s"], asked["most_bytes"])
            line: list[Any] = [number, "failed", failure]
            if content is not None and by_calls:
                line = [number, "value", json.loads(content)]
            elif content is not None:
                line = [number, "output", content.decode(errors="replace")]
        except (OSError, ValueError, RecursionError):
            line = [number, "failed", "broke"]
        told = json.dumps(line).encode() + b"\n"
        while told:
            told = told[os.write(out, told) :]


if __name__ == "__main__":
    main()
