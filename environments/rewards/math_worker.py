"""A process that decides whether two mathematical answers are equal: `math-verify` in a main thread of its own.

One line of JSON in, one out, until stdin ends. It takes time and memory without bound for some answers: it dies of so
many seconds of the processor, which are the same on a busy machine. Whoever started it kills it where it never gets
those, and should that one be gone, an alarm does. It imports nothing of ours, so as to start fast.
"""

import json
import logging
import os
import resource
import signal
import sys
from typing import Any

_MEMORY_BYTES = 2 * 2**30
_STDOUT = 1
_HARMFUL = ("os.", "shutil.", "socket.", "subprocess.", "ctypes.", "pty.", "signal.", "webbrowser.", "urllib.")


def main() -> None:
    """Answer until nobody asks any more."""
    logging.disable()
    sys.stdout = sys.stderr  # whatever a library prints is no answer
    # The default action, a death without a word, works inside C too, where a handler of Python's would wait.
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        from math_verify import parse, verify  # type: ignore[import-untyped]
    except ImportError as error:
        _say({"error": str(error)})
        return
    parse("$\\frac{1}{2}$ 1/2", parsing_timeout=None)  # builds its grammars and patterns
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    sys.addaudithook(_refuse)
    _say({})
    while line := sys.stdin.readline():  # iterating would read ahead
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_s"])
        signal.alarm(asked["alarm_s"])
        found = _decide(parse, verify, asked["gold"], asked["said"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        _say(found)


def _say(what: dict[str, Any]) -> None:
    os.write(_STDOUT, json.dumps(what).encode() + b"\n")


def _decide(parse: Any, verify: Any, gold: str, said: str) -> dict[str, bool]:
    """Whether the two are equal, and whether the right one is mathematics at all."""
    try:
        right, found = (parse(f"${text}$", parsing_timeout=None) for text in (gold, said))
        # It gives what it has parsed, and behind it the text.
        is_parsed = bool(right) and not isinstance(right[0], str)
        is_equal = is_parsed and bool(found) and verify(right, found, timeout_seconds=None)
    except Exception:  # noqa: BLE001 - of whatever was said
        return {"is_parsed": True, "is_equal": False}
    return {"is_parsed": is_parsed, "is_equal": bool(is_equal)}


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Mathematics needs nothing of the machine but modules that are imported late."""
    is_writing = event == "open" and set(str(arguments[1] or "r")) & set("wax+")
    if is_writing or (event.startswith(_HARMFUL) and event not in ("os.listdir", "os.scandir")):
        raise PermissionError(f"{event} has no place in a formula")


if __name__ == "__main__":
    main()
