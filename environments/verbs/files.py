"""Groups as lines of a file that may be gone on with: what is in it is not played again."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from environments.types import ErrorKind, PlayedGroup

_decode = msgspec.json.Decoder(PlayedGroup).decode
_encode = msgspec.json.Encoder().encode


class GroupFile:
    """A file of JSON lines, one group each. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Opens or makes it. Raises ValueError for a file of something else; a last line that was cut short goes."""
        self.path = path
        self.keys: set[str] = set()
        """Problems that are in it. One that a policy which was away has not answered is played once more."""
        self._file: BinaryIO = path.open("a+b")
        try:
            self.keys = {group.problem_key for group in self._read() if not _was_unanswered(group)}
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
        self.keys.add(group.problem_key)

    def groups(self) -> Iterator[PlayedGroup]:
        """All that are in it, in the order in which they ended: of a problem that was played once more, the last."""
        self._file.seek(0)
        last = {_decode(line).problem_key: number for number, line in enumerate(self._file)}
        self._file.seek(0)
        for number, line in enumerate(self._file):
            if last[(group := _decode(line)).problem_key] == number:
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


def _was_unanswered(group: PlayedGroup) -> bool:
    return any(rollout.error is not None and rollout.error.kind is ErrorKind.POLICY for rollout in group.rollouts)
