"""Gzip in both directions. A body is inflated piece by piece, so that a bomb is refused after a few megabytes."""

import zlib
from collections.abc import Iterator

from rollouts.errors import TooLarge

MAX_INFLATED_BYTES = 256 * 1024 * 1024
FREE_BYTES = 2 * 1024 * 1024
"""Anything may inflate to so much."""
MAX_RATIO = 32
"""Beyond that a body may inflate to this many times what was read of it. Groups get three to ten times smaller."""
PIECE_BYTES = 64 * 1024
COMPRESS_LEVEL = 1
"""Numbers as text hardly get smaller at a higher level, only slower."""
GZIP = 16 + zlib.MAX_WBITS


def inflated(encoding: str, body: bytes) -> bytes:
    """The body without gzip, if its content encoding says that it has any.

    Raises zlib.error for what cannot be, TooLarge for what becomes too much.
    """
    if not body or "gzip" not in encoding.lower():
        return body
    return b"".join(_inflate(body))


def _inflate(body: bytes) -> Iterator[bytes]:
    """Pieces of all members. Raises zlib.error for what is no gzip, or breaks off."""
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
        while out := member.decompress(piece, PIECE_BYTES):
            size += len(out)
            if size > FREE_BYTES and size > min(MAX_INFLATED_BYTES, MAX_RATIO * read):
                raise TooLarge
            yield out
            piece = member.unconsumed_tail
        rest = member.unused_data
    if not member.eof:
        raise zlib.error("it breaks off")


def deflated(body: bytes) -> bytes:
    """The body as one gzip member."""
    compressor = zlib.compressobj(COMPRESS_LEVEL, zlib.DEFLATED, GZIP)
    return compressor.compress(body) + compressor.flush()
