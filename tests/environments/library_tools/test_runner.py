"""The runner, here without a sandbox: programs end as Python itself would end them."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from environments.rewards.judged_code import runner


def ran(source: str, **asked: Any) -> list[Any]:
    """What it answers about code of ours."""
    given = {"code": textwrap.dedent(source), "calls": [], "inputs": [], "most_s": 20, "most_bytes": 1_000}
    given |= {"imported": "", "holder": ""} | asked
    command = [sys.executable, "-I", "-S", runner.__file__]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "source",
    [
        """
        import threading
        def main():
            threading.main_thread().join()
            print(input().upper())
        threading.Thread(target=main).start()
        """,
        """
        import atexit
        lines = []
        atexit.register(lambda: print(*lines))
        lines.append(input().upper())
        raise SystemExit
        """,
    ],
    ids=["in a thread", "at its exit"],
)
def test_what_a_program_prints_late_is_its_output_too(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where it keeps what a program reads
    assert ran(source, inputs=["ab\n"]) == [[0, "output", "AB\n"]]


STARVED = """
    import os, signal, time
    def solve(n):
        me = os.getpid()
        if not os.fork():
            time.sleep(1.2)
            os.kill(me, signal.SIGCONT)
            os._exit(0)
        os.kill(me, signal.SIGSTOP)
        return 2 * n
"""
"""A machine that gives a process no time is one that stops it."""


def test_a_busy_machine_makes_no_right_answer_wrong() -> None:
    assert ran(STARVED, calls=[["solve", [2], {}]], most_s=1) == [[0, "value", 4]]


@pytest.mark.parametrize(
    "source",
    ["while True: pass", "import time\ntime.sleep(3600)", "import os, time\nos.closerange(0, 256)\ntime.sleep(3600)"],
    ids=["computes", "waits", "closes its outputs and waits"],
)
def test_what_computes_or_waits_for_ever_ends_and_the_next_is_asked(source: str) -> None:
    code = f"def solve(n):\n    if n: return n\n{textwrap.indent(source, '    ')}"
    answers = ran(code, calls=[["solve", [n], {}] for n in (0, 1)], most_s=0.2)
    assert answers == [[0, "failed", "took too long"], [1, "value", 1]]


def test_a_call_is_charged_for_what_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def starts_another(writer: int) -> None:
        if not os.fork():
            while True:
                pass
        os.wait()

    monkeypatch.setattr(runner, "BUSY", 1_000)  # the clock will not end it
    assert runner._answer_of(starts_another, 0.2, 1_000) == (None, "took too long")
