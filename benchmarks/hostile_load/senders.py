"""Hostile senders: one process at the lowest priority, a thread and an address of 127.0.0.0/8 for each.

They share the machine with what they attack, so they make nothing while they send, and say how much CPU they took. A
sender sends as fast as it is answered; one that trickles holds connections and sends a byte on each now and then.
"""

import contextlib
import multiprocessing
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event

from benchmarks.hostile_load.attacks import SLOW_CONNECTIONS, Attack
from benchmarks.wire_load.connection import Address
from benchmarks.wire_load.payloads import STAMP

LOWEST = 19
TIMEOUT_S = 60.0
_TRICKLE_S = 0.1
_PIECE_BYTES = 2**20
_PAUSE_S = 0.01
"""After a connection that could not be made, or was closed without an answer."""


@dataclass
class Log:
    """What became of an attack."""

    answers: Counter[int] = field(default_factory=Counter)
    """Status -> how often; 0 where the server hung up."""
    cpu_s: float = 0.0
    """That the senders took."""

    @property
    def sent(self) -> int:
        return self.answers.total()


@contextlib.contextmanager
def attacking(address: Address, attack: Attack, senders: int, first_source: int) -> Iterator[Log]:
    """So many senders at work, the first of them answered already; their log is filled in at the end.

    They come from 127.0.0.0/8, from ``first_source`` on: what earlier ones are remembered for is not held against them.
    """
    context = multiprocessing.get_context("fork")  # the request is shared, not copied
    receiving, sending = context.Pipe(duplex=False)
    begun, stop = context.Event(), context.Event()
    arguments = (sending, begun, stop, address, attack, senders, first_source)
    process = context.Process(target=_send_all, args=arguments, daemon=True)
    process.start()
    sending.close()
    log = Log()
    try:
        if not begun.wait(TIMEOUT_S):
            raise SystemExit(f"no hostile sender was answered within {TIMEOUT_S:.0f} s: the machine is too busy")
        yield log
    finally:
        stop.set()
        with contextlib.suppress(EOFError):
            found: Log = receiving.recv() if receiving.poll(TIMEOUT_S) else Log()
            log.answers, log.cpu_s = found.answers, found.cpu_s
        process.kill()
        process.join()


def send_one(address: Address, attack: Attack, source: int, timeout_s: float = TIMEOUT_S) -> int:
    """Send it once on a connection of its own; the status of the answer, 0 without one."""
    with contextlib.suppress(OSError), _connected(address, source, timeout_s) as connection:
        return _exchange(connection, attack.request)[0]
    return 0


def _send_all(
    results: "Pipe[Log, None]",
    begun: Event,
    stop: Event,
    address: Address,
    attack: Attack,
    senders: int,
    first_source: int,
) -> None:
    """Body of the process."""
    os.nice(LOWEST)
    log = Log()
    work = _trickle if attack.trickles else _repeat
    threads = [
        threading.Thread(target=work, args=(begun, stop, address, attack, first_source + number, log), daemon=True)
        for number in range(senders)
    ]
    began = time.process_time()
    for thread in threads:
        thread.start()
    stop.wait()
    log.cpu_s = time.process_time() - began
    results.send(Log(Counter(log.answers), log.cpu_s))


def _repeat(begun: Event, stop: Event, address: Address, attack: Attack, source: int, log: Log) -> None:
    connection: socket.socket | None = None
    number = source * 10**6
    while not stop.is_set():
        number += 1
        status, stays = 0, False
        with contextlib.suppress(OSError):
            connection = connection or _connected(address, source, TIMEOUT_S)
            status, stays = _exchange(connection, attack.request.replace(STAMP, b"%012d" % number))
        log.answers[status] += 1
        begun.set()
        if connection is not None and not stays:
            connection.close()
            connection = None
        if not status:
            time.sleep(_PAUSE_S)


def _trickle(begun: Event, stop: Event, address: Address, attack: Attack, source: int, log: Log) -> None:
    held: list[socket.socket] = []
    while not stop.is_set():
        for each in list(held):
            try:
                each.sendall(b"x")
            except OSError:
                each.close()
                held.remove(each)
                log.answers[0] += 1
        with contextlib.suppress(OSError):
            while len(held) < SLOW_CONNECTIONS:
                held.append(_connected(address, source, TIMEOUT_S))
                held[-1].sendall(attack.request)
                begun.set()
        stop.wait(_TRICKLE_S)


def _connected(address: Address, source: int, timeout_s: float) -> socket.socket:
    host = f"127.{source >> 16 & 255}.{source >> 8 & 255}.{source & 255}"
    connection = socket.create_connection((address.host, address.port), timeout_s, (host, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _exchange(connection: socket.socket, request: bytes) -> tuple[int, bool]:
    """(status, whether the connection stays) of one request, which may be answered before all of it is sent."""
    view = memoryview(request)
    with contextlib.suppress(OSError):
        for at in range(0, len(view), _PIECE_BYTES):
            connection.sendall(view[at : at + _PIECE_BYTES])
    received = b""
    with contextlib.suppress(OSError):
        while b"\r\n\r\n" not in received and (piece := connection.recv(65536)):
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        lower = head.lower()
        stays = b"content-length: " in lower and b"connection: close" not in lower
        if stays:
            missing = int(lower.split(b"content-length: ")[1].split(b"\r\n")[0]) - len(body)
            while missing > 0 and (piece := connection.recv(min(65536, missing))):
                missing -= len(piece)
            stays = missing == 0
        return (int(received.split(b" ", 2)[1]) if received.startswith(b"HTTP/1.1 ") else 0), stays
    return 0, False
