"""How much this process takes in at a time. What is too much is told to come again, before it takes memory.

Used from the event loop only.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rollouts.errors import Unavailable

MAX_REQUESTS = 512
"""That wait for a thread. Whoever has not sent all of a body yet takes nobody's place."""
MAX_BYTES = 512 * 1024 * 1024
"""Of bodies that are being received, or wait for a thread. One alone may always be."""
LARGE_BYTES = 4 * 1024 * 1024
MAX_LARGE_BYTES = 128 * 1024 * 1024
"""The same, for what is larger than LARGE_BYTES: some large bodies leave the others room."""

_requests = 0
_bytes = 0


class Ticket:
    """One request's part of it."""

    def __init__(self) -> None:
        self.size = 0
        self.is_whole = False

    def grow(self, count: int) -> None:
        """So many more bytes were received. Raises Unavailable when all requests together have too many."""
        global _bytes
        self.size += count
        _bytes += count
        most = MAX_LARGE_BYTES if self.size > LARGE_BYTES else MAX_BYTES
        if _bytes > most and _bytes > self.size:
            raise Unavailable

    def complete(self) -> None:
        """The body is there. Raises Unavailable when too many wait for a thread."""
        global _requests
        if _requests >= MAX_REQUESTS:
            raise Unavailable
        _requests += 1
        self.is_whole = True


@contextmanager
def admitted() -> Iterator[Ticket]:
    """A request, from its first byte until it is answered."""
    global _requests, _bytes
    ticket = Ticket()
    try:
        yield ticket
    finally:
        _requests -= ticket.is_whole
        _bytes -= ticket.size
