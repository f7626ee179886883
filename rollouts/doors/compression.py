"""Gzip in both directions. A body is inflated piece by piece; of one that becomes unusually much what it comes to is
measured before any of it is kept, so that a bomb takes no memory."""

import zlib
from collections.abc import Iterator
from contextlib import suppress

from rollouts.errors import TooLarge

MAX_INFLATED_BYTES = 256 * 1024 * 1024
FREE_BYTES = 2 * 1024 * 1024
USUAL_RATIO = 32
"""Beyond these it is unusually much: groups get three to ten times smaller."""
MAX_RATIO = 400
"""Groups of short replies to one long prompt get a hundred times smaller, and 250 times at most; bombs a thousand."""
PIECE_BYTES = 64 * 1024
COMPRESS_LEVEL = 1
"""Numbers as text hardly get smaller at a higher level, only slower."""
GZIP = 16 + zlib.MAX_WBITS


class Large(Exception):
    """The body becomes large: it is inflated in the one thread for what takes much memory."""


def inflated(encoding: str, body: bytes, large_bytes: int = MAX_INFLATED_BYTES) -> bytes:
    """The body without gzip, if its content encoding says that it has any.

    Raises zlib.error for what cannot be, TooLarge for what becomes too much, Large for more than `large_bytes`.
    """
    if not body or "gzip" not in encoding.lower():
        return body
    with suppress(TooLarge):
        return b"".join(_inflate(body, USUAL_RATIO, large_bytes))
    for _ in _inflate(body, MAX_RATIO, large_bytes):
        pass
    return b"".join(_inflate(body, MAX_RATIO, large_bytes))


def _inflate(body: bytes, ratio: int, large_bytes: int) -> Iterator[bytes]:
    """Pieces of all members. Raises zlib.error for what is no gzip, or breaks off, TooLarge where it comes to more than
    `ratio` times what was read of it, Large where to more than `large_bytes`."""
    rest, read, size = b"", 0, 0
    view = memoryview(body)
    member = zlib.decompressobj(GZIP)
    while rest or read < len(body):
        if not rest:
            rest = bytes(view[read : read + PIECE_BYTES])
            read += len(rest)
        if member.eof:
            rest = rest.lstrip(b"\0")  # padding between members
            if not rest:
                continue
            member = zlib.decompressobj(GZIP)
        piece, rest = rest, b""
        while not member.eof and (out := member.decompress(piece, PIECE_BYTES)):
            size += len(out)
            if size > max(FREE_BYTES, min(MAX_INFLATED_BYTES, ratio * read)):
                raise TooLarge
            if size > large_bytes:
                raise Large
            yield out
            piece = member.unconsumed_tail
        rest = member.unused_data
    if not member.eof:
        raise zlib.error("it breaks off")


def deflated(body: bytes) -> bytes:
    """The body as one gzip member."""
    compressor = zlib.compressobj(COMPRESS_LEVEL, zlib.DEFLATED, GZIP)
    return compressor.compress(body) + compressor.flush()
