"""Processes of the measurement that answer lines on stdin with lines on stdout."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any


class Program:
    """One of them, as who started it sees it."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"benchmarks.scale_load.{module}", *arguments]
        self.name = module
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, word: str) -> Any:
        """Its answer to a word. Raises RuntimeError when it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self.process.wait()}: what it said is above")
        return json.loads(line)

    def end(self, deadline_s: float = 30.0) -> None:
        """Let it end; kill it when it does not."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def answer(words: dict[str, Callable[[], Any]], ending: threading.Event) -> None:
    """Be such a process: answer until stdin is closed, then set `ending`."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(words[line.strip()]()) + "\n")
        sys.stdout.flush()
    ending.set()
