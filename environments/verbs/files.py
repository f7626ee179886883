"""Groups as lines of a file that may be gone on with: what is in it is not played again.

The first line says how they were played, and nothing that was played otherwise is added. Several problems of a split
may be the same one, with one problem key. A group's `key` says which of them it is of.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from environments.types import ErrorKind, PlayedGroup, Problem, Split


class Conditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What groups have in common whose rewards may be summed up."""

    environment: str
    version: str
    args: dict[str, Any]
    model: str
    temperature: float
    max_tokens: int
    max_turns: int
    samples: int


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    played: Conditions


_HEAD = b'{"played":'
_decode_head = msgspec.json.Decoder(_Head).decode
_decode = msgspec.json.Decoder(PlayedGroup).decode
_encode = msgspec.json.Encoder().encode


class GroupFile:
    """A file of JSON lines, one group each behind the first. Use as a context manager."""

    def __init__(self, path: Path, played: Conditions) -> None:
        """Opens or makes it. Raises ValueError for a file of something else, and for groups that were `played`
        otherwise, as far as it says how; a last line that was cut short goes."""
        self.path = path
        self._played = played
        self._file: BinaryIO = path.open("a+b")
        try:
            # One that a policy which was away has not answered is played once more.
            self._known = Counter(_identity(group) for group in self._read() if not _was_unanswered(group))
            if not self._file.seek(0, os.SEEK_END):
                self._write(_Head(played))
        except BaseException:
            self._file.close()
            raise
        self._asked: dict[str, str] = {}
        """Keys of the problems that were asked for, by the group's own."""
        self._asked_unnamed = Counter[str]()
        """How many of them are there without a key of the group, by the problem's."""

    def __enter__(self) -> "GroupFile":
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()

    def add(self, group: PlayedGroup) -> None:
        """Append it; it is on the disk when this returns."""
        self._write(group)

    def lacking(self, split: Split, problems: Iterable[tuple[int, Problem]]) -> Iterator[int]:
        """Numbers of the problems that were not in it when it was opened, of those that are given: those asked for."""
        # Written before groups had keys: each is one of the problems that are the same, no matter which.
        unnamed = Counter({problem_key: count for (problem_key, key), count in self._known.items() if key is None})
        for index, problem in problems:
            key = key_of(split, index)
            if (problem.key, key) not in self._known and unnamed[problem.key]:
                unnamed[problem.key] -= 1
                self._asked_unnamed[problem.key] += 1
                continue
            self._asked[key] = problem.key
            if (problem.key, key) not in self._known:
                yield index

    def asked(self) -> Iterator[PlayedGroup]:
        """Those of `groups` that `lacking` was asked for."""
        unnamed = self._asked_unnamed.copy()
        for group in self.groups():
            if group.key is None and unnamed[group.problem_key] and not _was_unanswered(group):
                unnamed[group.problem_key] -= 1
                yield group
            elif group.key is not None and self._asked.get(group.key) == group.problem_key:
                yield group

    def groups(self) -> Iterator[PlayedGroup]:
        """All that are in it, in the order in which they ended: of a problem that was played once more, the last."""
        last: dict[object, int] = {}
        for number, group in enumerate(self._read()):
            last[group.problem_key] = last[_identity(group)] = number
        for number, group in enumerate(self._read()):
            if group.key is not None:
                is_last = last[_identity(group)] == number
            else:  # what comes later may be of another problem that is the same, and was not played for this one
                is_last = not _was_unanswered(group) or last[group.problem_key] == number
            if is_last:
                yield group

    def _write(self, line: PlayedGroup | _Head) -> None:
        self._file.write(_encode(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> Iterator[PlayedGroup]:
        """The groups of this environment; a file of before may have some of others."""
        self._file.seek(0)
        good = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                self._file.truncate(good)
                return
            good += len(line)
            try:
                if number == 1 and line.startswith(_HEAD):
                    self._check(_decode_head(line).played)
                elif (group := _decode(line)).environment == self._played.environment:
                    yield group
            except msgspec.MsgspecError as error:
                raise ValueError(
                    f"{self.path}, line {number}, is no group: {error}. Name another file, or remove it."
                ) from error

    def _check(self, was: Conditions) -> None:
        fields = ((name, getattr(was, name), getattr(self._played, name)) for name in was.__struct_fields__)
        if other := [f"{name} {before!r}, not {now!r}" for name, before, now in fields if before != now]:
            raise ValueError(f"{self.path} has groups of {'; '.join(other)}: ask for the same, or name another file.")


def key_of(split: Split, index: int) -> str:
    """Which problem of an environment a group in a file is of, as the group's `key`."""
    return f"{split}/{index}"


def _identity(group: PlayedGroup) -> tuple[str, str | None]:
    """Of the problem that it is of. Arguments of an environment may make another one of the same number."""
    return group.problem_key, group.key


def _was_unanswered(group: PlayedGroup) -> bool:
    return any(rollout.error is not None and rollout.error.kind is ErrorKind.POLICY for rollout in group.rollouts)
