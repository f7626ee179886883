"""The process that makes the items of reasoning_gym and scores answers to them: one line of JSON in, one out.

Some data sets depend on the order of sets of text, which another process has otherwise: this one is started with an
order that is always the same. Some scorers take time without bound: it dies of so many seconds of the processor, which
are the same on a busy machine. Whoever started it kills it where it never gets those, and should that one be gone, an
alarm does. An item is made anew to score it, since what scorers read there is not JSON: that is no time of the answer.
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
_BUSY = 5
"""Times its deadline that a scorer may take, where others want the processor too."""


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

    def score(self, item: PuzzleItem, question: str, said: str, *, making_s: float, deadline_s: float) -> float | None:
        """What the data set's scorer gives; None: it fails, or takes more of the processor than `deadline_s`.

        Raises ValueError: there is no item to score within `making_s`, or it has not that question.
        """
        asked = {"item": msgspec.to_builtins(item)}
        with self._lock:
            made = self._told(asked, making_s)
            if "error" in made:
                raise ValueError(f"the item is not made again to score an answer: {made['error']}")
            if made["question"] != question:
                raise ValueError("the item is another question than before: its seed alone does not decide it")
            scored = self._told({"said": said, "cpu_s": deadline_s}, _BUSY * deadline_s)
            if scored.get("has_no_item"):
                raise ValueError("the process that made the item to score an answer is gone")
            return scored.get("score")

    def _ask(self, asked: JsonObject, deadline_s: float) -> JsonObject:
        with self._lock:
            return self._told(asked, deadline_s)

    def _told(self, asked: JsonObject, deadline_s: float) -> JsonObject:
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
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what data sets print is no answer
    sets = _DataSets()
    told.write("{}\n")
    told.flush()
    while line := sys.stdin.readline():  # iterating would read ahead
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked.get("cpu_s", 0))
        signal.alarm(asked["alarm_s"])
        answered = sets.answered(asked)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        told.write(json.dumps(answered) + "\n")
        told.flush()


class _DataSets:
    """Each made once, as long as it is among the last used."""

    def __init__(self) -> None:
        self._factory = import_module("reasoning_gym.factory")
        reasoning_gym_answers.guard()
        self._made: dict[bytes, Any] = {}
        self._newest: tuple[Any, Any] | None = None
        """The last item that was made, and its data set: for one answer, since a scorer may change it."""

    def answered(self, asked: JsonObject) -> JsonObject:
        if "names" in asked:
            return {"names": sorted(self._factory.DATASETS)}
        if "said" in asked:
            return self._scored(asked["said"])
        return self._posed(msgspec.convert(asked["item"], PuzzleItem))

    def _posed(self, item: PuzzleItem) -> JsonObject:
        try:
            data_set = self._of(item)
            entry = data_set[item.index]
        except Exception as exc:  # noqa: BLE001 - whatever the library has against the options
            return {"error": f"{type(exc).__name__}: {exc}"}
        self._newest = (data_set, entry)
        return {"question": entry["question"], "answer": entry["answer"]}

    def _scored(self, said: str) -> JsonObject:
        if self._newest is None:  # another process made it
            return {"has_no_item": True}
        (data_set, entry), self._newest = self._newest, None
        try:
            score = float(data_set.score_answer(said, entry))
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
