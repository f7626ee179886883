"""The web process as `rollyard up` starts it, bytes on sockets to it, and how much memory a request costs it."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from django.conf import settings

from tests.browser.server import environment
from tests.hostile.application import Target
from tests.hostile.case import good
from tests.hostile.wires import Wire, json_of, written

READY_DEADLINE_S = 60.0
ANSWER_DEADLINE_S = 60.0
MIB = 2**20
GROUP, ITEM = json_of(good()), written(Wire.ATROPOS, good()) or b""


@dataclass(frozen=True)
class Cost:
    """What an exchange took."""

    answer: bytes
    extra_bytes: int
    """Of the server's memory at its peak, above what it had before."""

    @property
    def status(self) -> int:
        return status_of(self.answer)

    def __str__(self) -> str:
        return f"{self.status} with {self.extra_bytes / MIB:+.1f} MiB"


@dataclass(frozen=True)
class Web:
    """One `python -m controlplane.web.serve` on a socket of ours."""

    process: subprocess.Popen[bytes]
    address: tuple[str, int]
    log: Path
    """What it prints."""

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=ANSWER_DEADLINE_S)

    def exchange(self, *pieces: bytes, half_close: bool = False) -> bytes:
        """What comes back on one connection until the server closes it. It may do so while we still send."""
        with self.connect() as connection:
            with suppress(OSError):
                for piece in pieces:
                    connection.sendall(piece)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
            received = bytearray()
            with suppress(OSError):
                while piece := connection.recv(65536):
                    received += piece
            return bytes(received)

    def request(self, head: str, *pieces: bytes, half_close: bool = False) -> bytes:
        """The answer to one request, whose connection is closed after it. The pieces begin with its last headers."""
        return self.exchange(only(head), *pieces, half_close=half_close)

    def measure(self, *pieces: bytes) -> Cost:
        """What comes back on one connection, and what it cost."""
        memory = psutil.Process(self.process.pid).memory_info().rss
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")  # the peak begins anew
        answer = self.exchange(*pieces)
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
        return Cost(answer, peak - memory)

    def check_serves(self, target: Target) -> None:
        """Both APIs take a good group."""
        assert status_of(self.request(native(target), sized(GROUP))) == 201
        assert status_of(self.request(atropos(target), sized(ITEM))) == 200


def native(target: Target, token: str | None = None) -> str:
    """The head of a submission, without its length."""
    head = f"POST /api/v1/runs/{target.run.key}/groups HTTP/1.1\r\nContent-Type: application/json"
    return f"{head}\r\nAuthorization: Token {target.token if token is None else token}"


def atropos(target: Target, key: str | None = None) -> str:
    return f"POST /atropos/{key or target.external.address.key}/scored_data HTTP/1.1\r\nContent-Type: application/json"


def only(head: str) -> bytes:
    """The head of a request after which the connection is closed, as far as all have it in common."""
    return f"{head}\r\nHost: localhost\r\nConnection: close\r\n".encode()


def sized(body: bytes) -> bytes:
    """The end of the head, and the body."""
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def status_of(answer: bytes) -> int:
    """0 when the server hung up without a word."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


@contextmanager
def serving(log: Path) -> Iterator[Web]:
    """A web process over the database of the tests."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening, log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "controlplane.web.serve", "--fd", str(listening.fileno())],
            env=environment(),
            cwd=settings.BASE_DIR,
            pass_fds=[listening.fileno()],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        web = Web(process, listening.getsockname(), log)
        try:
            give_up_at = time.monotonic() + READY_DEADLINE_S
            while status_of(web.request("GET /healthz HTTP/1.1", b"\r\n")) != 200:
                if process.poll() is not None or time.monotonic() > give_up_at:
                    raise RuntimeError(f"the web process did not start: {log.read_text()}")
            yield web
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
