"""Groups as lines of a file that may be gone on with: what is in it is not played again.

Several problems of a split may be the same one, with one problem key. A group's `key` says which of them it is of.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from environments.types import ErrorKind, PlayedGroup, Problem, Split

_decode = msgspec.json.Decoder(PlayedGroup).decode
_encode = msgspec.json.Encoder().encode


class GroupFile:
    """A file of JSON lines, one group each. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Opens or makes it. Raises ValueError for a file of something else; a last line that was cut short goes."""
        self.path = path
        self._file: BinaryIO = path.open("a+b")
        try:
            # One that a policy which was away has not answered is played once more.
            self._known = Counter(_identity(group) for group in self._read() if not _was_unanswered(group))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "GroupFile":
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()

    def add(self, group: PlayedGroup) -> None:
        """Append it; it is on the disk when this returns."""
        self._file.write(_encode(group) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def lacking(self, split: Split, problems: Iterable[tuple[int, Problem]]) -> Iterator[int]:
        """Numbers of the problems that were not in it when it was opened, of those that are given."""
        # Written before groups had keys: each is one of the problems that are the same, no matter which.
        unnamed = Counter({problem_key: count for (problem_key, key), count in self._known.items() if key is None})
        for index, problem in problems:
            if (problem.key, key_of(split, index)) in self._known:
                continue
            if unnamed[problem.key]:
                unnamed[problem.key] -= 1
            else:
                yield index

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

    def _read(self) -> Iterator[PlayedGroup]:
        self._file.seek(0)
        good = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                self._file.truncate(good)
                return
            good += len(line)
            try:
                yield _decode(line)
            except msgspec.MsgspecError as error:
                raise ValueError(
                    f"{self.path}, line {number}, is no group: {error}. Name another file, or remove it."
                ) from error


def key_of(split: Split, index: int) -> str:
    """Which problem of an environment a group in a file is of, as the group's `key`."""
    return f"{split}/{index}"


def _identity(group: PlayedGroup) -> tuple[str, str | None]:
    """Of the problem that it is of. Arguments of an environment may make another one of the same number."""
    return group.problem_key, group.key


def _was_unanswered(group: PlayedGroup) -> bool:
    return any(rollout.error is not None and rollout.error.kind is ErrorKind.POLICY for rollout in group.rollouts)
