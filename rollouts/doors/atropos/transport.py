"""Bytes in and bytes out: bodies of a bounded size, gzip in both directions, cross-origin headers.

A compressed body is inflated piece by piece, so that a bomb is refused after a few megabytes, whatever it would become.
"""

import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from django.conf import settings

from rollouts.doors.atropos.admission import Ticket
from rollouts.doors.atropos.responses import TEXT, Refused, Response, problem, text

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = dict[bytes, bytes]

UNASKED_BYTES = 256 * 1024
"""So much is read of a body before it is asked who sends it: a hop to a thread of its own would cost more."""
MAX_INFLATED_BYTES = 256 * 1024 * 1024
FREE_BYTES = 4 * 1024 * 1024
"""Anything may inflate to so much."""
MAX_RATIO = 100
"""Beyond that a body may inflate to this many times what was read of it."""
PIECE_BYTES = 64 * 1024
COMPRESS_FROM_BYTES = 1000
COMPRESS_LEVEL = 1
"""Numbers as text hardly get smaller at a higher level, only slower."""
GZIP = 16 + zlib.MAX_WBITS


class Disconnected(Exception):
    """The client went away before its request was complete."""


async def read_body(
    headers: Headers, receive: Receive, ticket: Ticket, check_known: Callable[[], Awaitable[object]]
) -> bytes:
    """The body as it was sent. Raises Refused beyond the limit, before more of it is read, and Disconnected.

    When it turns out to be large, ``check_known`` is awaited once: it raises Refused for those who may not send it.
    """
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    length = headers.get(b"content-length", b"")
    if length.isdigit() and (len(length) > 18 or int(length) > limit):
        raise _too_large()
    pieces, size, is_known = [], 0, False
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large()
        ticket.grow(len(piece))
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if size > UNASKED_BYTES and not is_known:
            await check_known()
            is_known = True


def inflated(headers: Headers, body: bytes) -> bytes:
    """The body without gzip, if its headers say that it has any. Raises Refused for what cannot be, or is a bomb."""
    if not body or b"gzip" not in headers.get(b"content-encoding", b"").lower():
        return body
    try:
        return b"".join(_inflate(body))
    except zlib.error:
        raise Refused(text("Invalid gzip payload", 400)) from None


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
                raise _too_large()
            yield out
            piece = member.unconsumed_tail
        rest = member.unused_data
    if not member.eof:
        raise zlib.error("it breaks off")


async def write(response: Response, headers: Headers, send: Send) -> None:
    """Send a whole answer, uncompressed."""
    start, body = begin(response, headers)
    await send(start)
    await send({"type": "http.response.body", "body": body})


def begin(response: Response, headers: Headers) -> tuple[dict[str, Any], bytes]:
    """The first message of an answer, and the body that belongs to it: compressed if that is asked for and pays."""
    out = [
        (b"content-type", response.content_type.encode()),
        (b"cache-control", b"no-store"),  # some GETs change state: nothing on the way may answer for us
        *((name.lower().encode(), value.encode()) for name, value in response.headers.items()),
    ]
    body, varies = response.body, []
    if len(body) >= COMPRESS_FROM_BYTES:
        varies.append(b"Accept-Encoding")
        if b"gzip" in headers.get(b"accept-encoding", b""):
            body = _gzip(body)
            out.append((b"content-encoding", b"gzip"))
    if (origin := headers.get(b"origin")) is not None:
        varies.append(b"Origin")
        out += [(b"access-control-allow-origin", origin), (b"access-control-allow-credentials", b"true")]
    if varies:
        out.append((b"vary", b", ".join(varies)))
    out.append((b"content-length", str(len(body)).encode()))
    return {"type": "http.response.start", "status": response.status, "headers": out}, body


def preflight(headers: Headers) -> Response:
    """What a browser asks before it sends a request from a page of another origin: all is allowed, as with Atropos.

    No cookie means anything here: whoever knows the key may do everything, and nobody else anything.
    """
    allowed = {
        "Access-Control-Allow-Methods": "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT",
        "Access-Control-Max-Age": "600",
    }
    if (wanted := headers.get(b"access-control-request-headers")) is not None:
        allowed["Access-Control-Allow-Headers"] = wanted.decode("latin-1")
    return Response(b"OK", 200, TEXT, allowed)


def _gzip(body: bytes) -> bytes:
    compressor = zlib.compressobj(COMPRESS_LEVEL, zlib.DEFLATED, GZIP)
    return compressor.compress(body) + compressor.flush()


def _too_large() -> Refused:
    return Refused(problem(413, "The body is larger than this server takes. Send fewer groups at once."))
