"""What clients asked and what they heard: one append-only file per client, a line before and a line after every call.

    invoke ──► ok        the answer says yes
          ├──► fail      the answer says no: it did not happen
          └──► unknown   no answer, or one that says nothing: it happened or it did not (also: the client died)

Every line is one write(2), so a client may be killed at any instant: at worst its last line is torn, and is not read.
Times are of CLOCK_MONOTONIC, which all processes of one machine share.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np


class Act(StrEnum):
    """What a client can ask for."""

    SUBMIT = "submit"
    REGISTER = "register"
    FETCH = "fetch"
    ACK = "ack"


class Outcome(StrEnum):
    """What it heard."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Sent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group as its submitter knows it."""

    marker: tuple[int, int]
    """The first two token ids of its first rollout: (number of the client, number of the group). No two are alike."""
    digest: str
    """See `digest_of`."""
    key: str | None = None
    """None where the protocol has no keys."""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a history."""

    number: int
    """Of the call: that of its first line in the file. The two lines of a call share it."""
    at_ns: int
    run: str
    act: Act
    outcome: Outcome | None = None
    """None: the call is about to be made."""
    groups: list[Sent] = []
    """What is submitted."""
    epoch: int | None = None
    step: int | None = None
    sha256: str | None = None
    """Of the body received, or of the one acknowledged."""
    markers: list[tuple[int, int]] | None = None
    """Of the groups in the body received, where it names no step."""
    detail: str = ""


@dataclass(frozen=True)
class Call:
    """A call and its outcome."""

    client: str
    asked: Line
    heard: Line | None
    """None: the client died before an answer."""

    @property
    def outcome(self) -> Outcome:
        return self.heard.outcome or Outcome.UNKNOWN if self.heard else Outcome.UNKNOWN


class Recorder:
    """Writes the history of one client. A client that is started again goes on in its file."""

    def __init__(self, path: Path, run: str) -> None:
        before = list(_lines(path)) if path.exists() else []
        self.next_group = 1 + max((group.marker[1] for line in before for group in line.groups), default=-1)
        """The first number of a group that was not used."""
        self._run = run
        self._next = len(before)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            os.write(self._descriptor, b"\n")  # ends the torn line of the process before

    def ask(self, act: Act, **fields: Any) -> int:
        """Write down that a call is about to be made; return its number."""
        number = self._next
        self._write(number, act, None, fields)
        return number

    def hear(self, number: int, act: Act, outcome: Outcome, **fields: Any) -> None:
        """Write down how the call ended."""
        self._write(number, act, outcome, fields)

    def _write(self, number: int, act: Act, outcome: Outcome | None, fields: dict[str, Any]) -> None:
        line = Line(number=number, at_ns=time.monotonic_ns(), run=self._run, act=act, outcome=outcome, **fields)
        os.write(self._descriptor, msgspec.json.encode(line) + b"\n")
        self._next += 1


def read(directory: Path, run: str) -> list[Call]:
    """Every call about a run in the histories of a directory, in the order in which they were made."""
    calls = []
    for path in sorted(directory.glob("*.jsonl")):
        heard: dict[int, Line] = {}
        asked: list[Line] = []
        for line in _lines(path):
            if line.run == run:
                asked.append(line) if line.outcome is None else heard.update({line.number: line})
        calls += [Call(path.stem, line, heard.get(line.number)) for line in asked]
    return sorted(calls, key=lambda call: call.asked.at_ns)


def _lines(path: Path) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    for text in path.read_bytes().split(b"\n"):
        try:
            yield decoder.decode(text)
        except msgspec.DecodeError:
            continue  # torn by a kill, or the end of the file


def digest_of(rollouts: Sequence[tuple[Sequence[int], Sequence[int], Sequence[float]]]) -> str:
    """SHA-256 of a group's (token ids, loss mask, inference logprobs) as the store lays them out, end to end."""
    parts = [np.asarray([len(ids) for ids, _, _ in rollouts], "<u4").tobytes()]
    for position, dtype in enumerate(("<u4", "u1", "<f4")):
        parts += [np.asarray(rollout[position], dtype).tobytes() for rollout in rollouts]
    return hashlib.sha256(b"".join(parts)).hexdigest()
