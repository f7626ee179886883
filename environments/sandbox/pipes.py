"""What goes in and out of a program, and whether it has ended: all waited for at once, by the thread that attends."""

import contextlib
import fcntl
import os
import selectors
import subprocess
from typing import IO, Self

from environments.sandbox.call import SandboxCall
from environments.sandbox.cell import BEGINNING

_CHUNK_BYTES = 65_536


class Stopped(Exception):
    """Nobody waits for the result any more."""


class Stop:
    """Tells a thread that attends a sandbox to end it. Safe from any thread."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC)

    def set(self) -> None:
        """End it now."""
        os.eventfd_write(self.descriptor, 1)

    def __del__(self) -> None:
        os.close(self.descriptor)


class _Kept:
    """The beginning or the end of what somebody writes."""

    def __init__(self, limit: int, *, of_end: bool) -> None:
        self.total = 0
        self._limit = limit
        self._of_end = of_end
        self._content = bytearray()

    @property
    def content(self) -> bytes:
        return bytes(self._content)

    @property
    def was_cut(self) -> bool:
        return self.total > self._limit

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        if self._of_end:
            self._content += chunk
            del self._content[: -self._limit]
        else:
            self._content += chunk[: self._limit - len(self._content)]


class Pipes:
    """What goes in and out of a child, as its pipes are ready; and whether it has ended."""

    def __init__(self, child: "subprocess.Popen[bytes]", call: SandboxCall, stop: Stop) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self.has_begun = self.is_over = False
        self.out = _Kept(call.limits.kept_bytes, of_end=False)
        self.err = _Kept(call.limits.kept_bytes, of_end=True)
        self._pipes_bytes = sum(fcntl.fcntl(file, fcntl.F_GETPIPE_SZ) for file in (child.stdout, child.stderr))
        self._stdin = child.stdin
        self._unsent = memoryview(b"")
        self._selector = selectors.DefaultSelector()
        self._ended = os.pidfd_open(child.pid)
        self._files: list[IO[bytes]] = [child.stdin, child.stdout, child.stderr]
        for file in self._files:
            os.set_blocking(file.fileno(), False)
        for source, reaction in (
            (child.stdout, lambda: self._read(child.stdout, self.out)),
            (child.stderr, lambda: self._read(child.stderr, self.err)),
            (self._ended, self._end),
            (stop.descriptor, self._stop),
        ):
            self._selector.register(source, selectors.EVENT_READ, reaction)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        os.close(self._ended)
        for file in self._files:
            with contextlib.suppress(BrokenPipeError):
                file.close()

    @property
    def written_bytes(self) -> int:
        """To both outputs so far."""
        return self.out.total + self.err.total

    def send(self, content: bytes) -> None:
        """Write to stdin, as fast as it is read, and close it then."""
        self._unsent = memoryview(content)
        self._selector.register(self._stdin, selectors.EVENT_WRITE, self._write)

    def move(self, timeout_s: float) -> bool:
        """Do what can be done, waiting for it at most so long. False: nothing could. Raises Stopped."""
        ready = self._selector.select(max(timeout_s, 0))
        for key, _ in ready:
            key.data()
        return bool(ready)

    def drain(self) -> None:
        """Take what is left in the pipes, when nobody writes any more."""
        for source in [key.fileobj for key in self._selector.get_map().values() if key.fileobj not in self._files[1:]]:
            self._selector.unregister(source)
        most = self.written_bytes + self._pipes_bytes
        while self._selector.get_map() and self.written_bytes < most and self.move(0):
            pass

    def _read(self, file: IO[bytes], kept: _Kept) -> None:
        try:
            chunk = os.read(file.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._selector.unregister(file)
        elif kept is self.out and not self.has_begun:
            self.has_begun = True
            kept.add(chunk.removeprefix(BEGINNING))
        else:
            kept.add(chunk)

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._stdin.fileno(), self._unsent[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not want the rest
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._selector.unregister(self._stdin)
            self._stdin.close()

    def _end(self) -> None:
        self.is_over = True

    def _stop(self) -> None:
        raise Stopped
