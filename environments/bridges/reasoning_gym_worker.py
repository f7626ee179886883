"""The process that makes the items of reasoning_gym and scores answers to them: one line of JSON in, one out.

Some data sets depend on the order of sets of text, which another process has otherwise: this one is started with an
order that is always the same. Some scorers take time without bound: whoever started it kills it at a deadline, and
should that one be gone, an alarm does. An item is made anew to score it, since what scorers read there is not JSON.
"""

import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from importlib import import_module
from typing import Any

import msgspec

from environments.bridges import reasoning_gym_answers
from environments.types import JsonObject

_MOST_SETS = 8
_MEMORY_BYTES = 3 * 2**30
_START_S = 120.0
"""For the imports: seconds where nothing else runs."""


class PuzzleItem(msgspec.Struct, frozen=True, array_like=True):
    """One item of a data set: of what name, made with which options, seed and size, and which of them."""

    name: str
    options: JsonObject
    seed: int
    size: int
    index: int


class Worker:
    """The process, started when first needed and again after it was killed. Calls block, and wait for each other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """What data sets there are. Raises RuntimeError: the process does not start."""
        names: list[str] = self._ask({"names": True}, _START_S)["names"]
        return names

    def entry(self, item: PuzzleItem, deadline_s: float) -> JsonObject:
        """Its `question` and its `answer`, which may be None. Raises ValueError, with what the library says."""
        entry = self._ask({"item": msgspec.to_builtins(item)}, deadline_s)
        if "error" in entry:
            raise ValueError(entry["error"])
        return entry

    def score(self, item: PuzzleItem, question: str, said: str, deadline_s: float) -> float | None:
        """What the data set's scorer gives; None: it fails or takes longer. Raises ValueError: not that question."""
        asked = {"item": msgspec.to_builtins(item), "question": question, "said": said}
        scored = self._ask(asked, deadline_s)
        if scored.get("is_other"):
            raise ValueError("the item is another question than before: its seed alone does not decide it")
        return scored.get("score")

    def _ask(self, asked: JsonObject, deadline_s: float) -> JsonObject:
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            line = json.dumps(asked | {"alarm_s": math.ceil(deadline_s) + 1}).encode()
            try:
                process.stdin.write(line + b"\n")
                answered = _line(process, deadline_s)
            except BrokenPipeError:
                answered = b""
            if not answered:
                self._end(process)
                return {"error": f"it takes more than {deadline_s:g} s, or ended its process"}
            told: JsonObject = json.loads(answered)
            return told

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        # Its imports must be those of this process, which may have found them by its directory.
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "0"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environ,
        )
        if _line(self._process, _START_S) != b"{}\n":
            self._end(self._process)
            raise RuntimeError("the process of reasoning_gym did not start: is the package installed?")
        return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        self._process = None


def main() -> None:
    """Answer until nobody asks any more."""
    # The default action, a death without a word, works inside C too, where a handler of Python's would wait.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what data sets print is no answer
    sets = _DataSets()
    told.write("{}\n")
    told.flush()
    while line := sys.stdin.readline():  # iterating would read ahead
        asked = json.loads(line)
        signal.alarm(asked["alarm_s"])
        answered = sets.answered(asked)
        signal.alarm(0)
        told.write(json.dumps(answered) + "\n")
        told.flush()


class _DataSets:
    """Each made once, as long as it is among the last used."""

    def __init__(self) -> None:
        self._factory = import_module("reasoning_gym.factory")
        reasoning_gym_answers.guard()
        self._made: dict[bytes, Any] = {}

    def answered(self, asked: JsonObject) -> JsonObject:
        if "names" in asked:
            return {"names": sorted(self._factory.DATASETS)}
        item = msgspec.convert(asked["item"], PuzzleItem)
        try:
            data_set = self._of(item)
            entry = data_set[item.index]
        except Exception as exc:  # noqa: BLE001 - whatever the library has against the options
            return {"error": f"{type(exc).__name__}: {exc}"}
        if "said" not in asked:
            return {"question": entry["question"], "answer": entry["answer"]}
        if entry["question"] != asked["question"]:
            return {"is_other": True}
        try:
            score = float(data_set.score_answer(asked["said"], entry))
        except Exception:  # noqa: BLE001 - several scorers raise for what is no answer at all
            return {}
        return {"score": score} if math.isfinite(score) else {}

    def _of(self, item: PuzzleItem) -> Any:
        key = msgspec.json.encode((item.name, item.options, item.seed, item.size))
        made = self._made.pop(key, None)
        if made is None:
            options = {**item.options, "seed": item.seed, "size": item.size}
            made = self._factory.create_dataset(item.name, **options)
        self._made[key] = made
        if len(self._made) > _MOST_SETS:
            del self._made[next(iter(self._made))]
        return made


def _line(process: subprocess.Popen[bytes], deadline_s: float) -> bytes:
    """A line of it, all of which is there once some of it is; empty: none in time."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    return process.stdout.readline() if poll.poll(deadline_s * 1000) else b""


if __name__ == "__main__":
    main()
