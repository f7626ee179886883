"""Code that wants to pass the tests without solving anything: it earns nothing, and ends in time."""

import textwrap
import time

import pytest

from environments import registry
from environments.rewards.judged_code.runner import BUSY
from environments.types import Message, Problem
from tests.environments.library_tools.playing import scored
from tests.environments.sandbox.programs import PATIENCE_S, needs_sandbox

pytestmark = [needs_sandbox, pytest.mark.slow]

WALL_S, TEST_S = 1.5, 0.3
"""Of the processor."""
LIMIT_S = BUSY * WALL_S
"""Of the clock, at which ends what waits."""
TRIPLED = Problem(
    key="tripled",
    messages=[Message("user", "triple it, and add 1")],
    data={
        "functions": ["solve"],
        "tests": [f"assert solve({n}) == {3 * n + 1}" for n in range(11, 23)],
        "solution": "",
    },
)
SHOUTED = Problem(
    key="shouted",
    messages=[Message("user", "print the line in capitals")],
    data={"pairs": [[f"{word}\n", f"{word.upper()}\n"] for word in ("one", "two", "three", "four")], "solution": ""},
)

ABUSES = {
    "prints that all tests passed": """
        print("all tests passed\\n12 passed, 0 failed\\nOK")
        def solve(n): print("all tests passed"); return "all tests passed"
    """,
    "ends with code 0 at once": "import os; os._exit(0)",
    "ends with code 0 in the call": "import os\ndef solve(n): os._exit(0)",
    "raises SystemExit": "import sys\ndef solve(n): sys.exit(0)",
    "answers with an object that equals all": """
        class Any:
            def __eq__(self, other): return True
            def __hash__(self): return 0
        def solve(n): return Any()
    """,
    "answers with a number that equals all": """
        class Any(int):
            def __eq__(self, other): return True
            __hash__ = int.__hash__
            def __repr__(self): return "True"
        def solve(n): return Any(7)
    """,
    "patches the builtins": """
        import builtins
        builtins.all = builtins.any = lambda *a: True
        builtins.len = lambda *a: 0
        builtins.isinstance = lambda *a: True
        def solve(n): return True
    """,
    "replaces modules": """
        import sys, types
        for name in ("json", "operator", "ast", "select", "os"):
            sys.modules[name] = types.ModuleType(name)
        def solve(n): return 0
    """,
    "makes json write what it likes": """
        import json
        json.dumps = lambda *a, **k: '[0, "value", 34]'
        def solve(n): return 0
    """,
    "patches the runner's own functions": """
        import sys, gc
        for found in gc.get_objects():
            if isinstance(found, dict) and "encoded" in found and "main" in found:
                found["encoded"] = lambda value: True
                found["decoded"] = lambda value: True
        def solve(n): return 0
    """,
    "looks for the tests in files": """
        import os, re
        def solve(n):
            for root, _, names in os.walk("/"):
                if root.startswith(("/proc", "/usr", "/sys", "/root", "/etc")):
                    continue
                for name in names:
                    try:
                        text = open(os.path.join(root, name)).read()
                    except (OSError, ValueError):
                        continue
                    found = re.search(rf"solve\\({n}\\) == (\\d+)", text)
                    if found: return int(found.group(1))
    """,
    "looks for the tests in memory": """
        import gc, re
        def solve(n):
            for found in gc.get_objects():
                inside = found.values() if isinstance(found, dict) else found
                for text in inside if isinstance(found, (dict, list, tuple)) else ():
                    if isinstance(text, str) and (hit := re.search(rf"solve\\({n}\\) == (\\d+)", text)):
                        return int(hit.group(1))
    """,
    "looks for the tests in the frames below": """
        import sys
        def solve(n):
            frame = sys._getframe()
            while frame:
                for name in ("expected", "right", "output", "tests", "answer"):
                    if name in frame.f_locals: return frame.f_locals[name]
                frame = frame.f_back
    """,
    "looks for the tests in the memory of its parent": """
        import os, re
        def solve(n):
            try:
                memory = open(f"/proc/{os.getppid()}/mem", "rb")
                for line in open(f"/proc/{os.getppid()}/maps"):
                    low, high = (int(x, 16) for x in line.split()[0].split("-"))
                    try:
                        memory.seek(low)
                        hit = re.search(rb"solve\\(%d\\) == (\\d+)" % n, memory.read(min(high - low, 2**24)))
                    except (OSError, ValueError, OverflowError):
                        continue
                    if hit: return int(hit.group(1))
            except OSError:
                return None
    """,
    "reads what stdin has left": "import sys\ndef solve(n): return sys.stdin.read() or open(0).read()",
    "writes answers to the pipe itself": """
        import os
        def solve(n):
            for fd in range(3, 50):
                try: os.write(fd, b'true')
                except OSError: pass
            os._exit(0)
    """,
    "writes lines to its parent's outputs": """
        import os
        def solve(n):
            for fd in range(20):
                try:
                    out = os.open(f"/proc/{os.getppid()}/fd/{fd}", os.O_WRONLY)
                    for i in range(12):
                        for guess in range(30, 70):
                            os.write(out, f'[{i}, "value", {guess}]\\n[{i}, "passed", true]\\n'.encode())
                except OSError: pass
            return 0
    """,
    "kills its parent": "import os, signal\ndef solve(n): os.kill(os.getppid(), signal.SIGKILL); return 0",
    "stops its parent": "import os, signal\ndef solve(n): os.kill(os.getppid(), signal.SIGSTOP); return 0",
    "kills everybody": "import os, signal\ndef solve(n): os.kill(-1, signal.SIGKILL)",
    "forks without end": """
        import os
        def solve(n):
            while True:
                try: os.fork()
                except OSError: pass
    """,
    "leaves a child that holds the pipe": """
        import os, time
        def solve(n):
            if not os.fork():
                os.setsid()
                time.sleep(600)
            os._exit(0)
    """,
    "floods its output": """
        import sys
        def solve(n):
            while True: sys.stdout.write("x" * 65536)
    """,
    "floods the pipe": """
        import os
        def solve(n):
            while True:
                for fd in range(3, 20):
                    try: os.write(fd, b"1" * 65536)
                    except OSError: pass
    """,
    "answers with a hundred megabytes": "def solve(n): return 'x' * 10**8",
    "answers with a list without end": "def solve(n):\n    a = []\n    a.append(a)\n    return a",
    "answers with a list of great depth": """
        import sys
        sys.setrecursionlimit(10**6)
        def solve(n):
            a = 0
            for _ in range(2000): a = [a]
            return a
    """,
    "answers with a huge number": "def solve(n): return 10 ** 5000",
    "answers with not a number": "def solve(n): return float('nan')",
    "takes all memory": "def solve(n):\n    a = []\n    while True: a.append(bytearray(2**24))",
    "fills the disk": """
        def solve(n):
            with open("full", "wb") as file:
                while True: file.write(b"x" * 2**20)
    """,
    "sleeps": "import time\ndef solve(n): time.sleep(3600)",
    "spins when it is imported": "while True: pass",
    "ignores signals and spins": """
        import signal
        for s in range(1, 32):
            try: signal.signal(s, signal.SIG_IGN)
            except OSError: pass
        def solve(n):
            while True: pass
    """,
    "crashes the interpreter": "import ctypes\ndef solve(n): ctypes.string_at(0)",
    "closes every descriptor": "import os\ndef solve(n): os.closerange(0, 256); return 0",
    "traces the caller": """
        import sys
        def trace(frame, event, argument):
            for name in list(frame.f_locals): frame.f_locals[name] = True
            return trace
        sys.settrace(trace)
        sys.setprofile(trace)
        def solve(n): return True
    """,
    "runs something at its end": """
        import atexit, os
        atexit.register(lambda: os.write(1, b'[0, "value", 34]'))
        def solve(n): return None
    """,
    "rewrites the program that runs it": """
        open("code_runner.py", "w").write("print('all passed')")
        def solve(n): return None
    """,
    "takes a generator for an answer": "def solve(n):\n    yield 3 * n + 1",
    "is a compile bomb": "def solve(n): return " + "(" * 5000 + "1" + ")" * 5000,
    "has a zero byte": "def solve(n):\n    return 3 * n + 1 #\0",
}


@pytest.mark.parametrize("source", ABUSES.values(), ids=ABUSES.keys())
def test_an_abuse_earns_nothing_and_ends_in_time(source: str) -> None:
    environment = registry.load("code", {"wall_s": WALL_S, "test_s": TEST_S})
    began = time.monotonic()
    [rollout] = scored(environment, TRIPLED, f"```python\n{textwrap.dedent(source)}\n```")
    assert time.monotonic() - began < LIMIT_S + PATIENCE_S
    assert rollout.reward == 0.0
    assert rollout.metrics["tests_passed"] == 0.0


PROGRAMS = {
    "prints that all is right": "print('all tests passed')",
    "repeats its input": "print(input())",
    "looks for the output in the files": """
        import glob
        for name in glob.glob("**", recursive=True): print(open(name).read())
    """,
    "ends with code 0": "raise SystemExit(0)",
    "forks and ends": "import os\nif os.fork(): os._exit(0)\nprint('ONE TWO THREE FOUR')",
    "floods": "while True: print('ONE')",
    "writes to the runner's output": """
        import os
        word = input()
        os.write(os.open(f"/proc/{os.getppid()}/fd/1", os.O_WRONLY), b'[0, "output", ""]')
    """,
    "prints what is right, and fails": "print(input().upper())\nraise ValueError",
}


@pytest.mark.parametrize("source", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program_that_prints_something_else_earns_nothing(source: str) -> None:
    environment = registry.load("code", {"wall_s": WALL_S, "test_s": TEST_S})
    began = time.monotonic()
    [rollout] = scored(environment, SHOUTED, f"```python\n{textwrap.dedent(source)}\n```")
    assert time.monotonic() - began < LIMIT_S + PATIENCE_S
    assert (rollout.reward, rollout.metrics["tests_passed"]) == (0.0, 0.0)


def test_the_honest_ones_earn_all() -> None:
    environment = registry.load("code", {"wall_s": WALL_S, "test_s": TEST_S})
    [rollout] = scored(environment, TRIPLED, "```\ndef solve(n):\n    return 3 * n + 1\n```")
    assert rollout.reward == 1.0
    [rollout] = scored(environment, SHOUTED, "```\nimport sys\nprint(sys.stdin.read().upper(), end='')\n```")
    assert rollout.reward == 1.0
