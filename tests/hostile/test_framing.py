"""Bytes on real sockets that no client would send: lengths that lie, broken chunks, odd request lines and headers."""

import pytest

from rollouts.models import ScoredGroup
from tests.hostile.application import Target
from tests.hostile.case import good
from tests.hostile.server import GROUP, ITEM, MIB, Web, atropos, native, sized, status_of
from tests.hostile.wires import json_of

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
stores_nothing = pytest.mark.usefixtures("nothing_stored")

LENGTHS = {
    "negative": b"Content-Length: -5",
    "no number": b"Content-Length: many",
    "of thirty digits": b"Content-Length: " + b"9" * 30,
    "two": b"Content-Length: 5\r\nContent-Length: 6",
    "two in one": b"Content-Length: 5, 5",
    "and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    "with a plus": b"Content-Length: +5",
    "chunked and gzipped": b"Transfer-Encoding: chunked, gzip",
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
}


@stores_nothing
@pytest.mark.parametrize("name", LENGTHS)
def test_a_length_that_is_none_is_refused(web: Web, target: Target, name: str) -> None:
    for head, body in ((native(target), GROUP), (atropos(target), ITEM)):
        assert status_of(web.request(head, LENGTHS[name] + b"\r\n\r\n", body, b"0\r\n\r\n")) in {0, 400, 413, 422}


@stores_nothing
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_body_that_is_shorter_than_promised_is_not_stored(web: Web, target: Target, share: float) -> None:
    for head, body in ((native(target), GROUP), (atropos(target), ITEM)):
        left_out = len(body) - int(share * len(body))
        assert status_of(web.request(head, sized(body)[:-left_out], half_close=True)) in {0, 400}


@stores_nothing
def test_what_follows_a_body_that_is_longer_than_promised_is_no_request(web: Web, target: Target) -> None:
    for head, body in ((native(target), GROUP), (atropos(target), ITEM)):
        answer = web.exchange(f"{head}\r\nHost: localhost\r\n".encode() + sized(body[:-9]) + body)
        assert status_of(answer) in {400, 422}


CHUNKS = {
    "a size that is no number": b"zz\r\n",
    "a size that is negative": b"-1\r\n",
    "a size of 64 bits": b"ffffffffffffffff\r\n",
    "a size of 80 bits": b"f" * 20 + b"\r\n",
    "no last chunk": b"%x\r\n" % len(GROUP) + GROUP + b"\r\n",
    "no line break behind a chunk": b"%x\r\n" % len(GROUP) + GROUP + b"0\r\n\r\n",
    "half a chunk": b"%x\r\n" % len(GROUP) + GROUP[:9],
    "a size only": b"5\r\n",
    "a NUL": b"5\0\r\n",
}


@stores_nothing
@pytest.mark.parametrize("name", CHUNKS)
def test_chunks_that_are_broken_are_not_stored(web: Web, target: Target, name: str) -> None:
    for head in (native(target), atropos(target)):
        answer = web.request(head, b"Transfer-Encoding: chunked\r\n\r\n", CHUNKS[name], half_close=True)
        assert status_of(answer) in {0, 400, 413, 422}


def test_chunks_of_one_byte_with_extensions_and_trailers_are_one_body(web: Web, target: Target) -> None:
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in GROUP) + b"0\r\nX-Trailer: a\r\n\r\n"
    assert status_of(web.request(native(target), b"Transfer-Encoding: chunked\r\n\r\n", chunks)) == 201


LINES = [
    b"GET /api/v1/\xff\xfe HTTP/1.1", b"GET /api/v1/\0 HTTP/1.1", b"GET /api/v1/%00 HTTP/1.1",
    b"GET /api/v1\\runs HTTP/1.1", b"GET /api/v1/../../etc/passwd HTTP/1.1", b"GET /api/v1/%2e%2e/%2e%2e/ HTTP/1.1",
    b"GET /api/v1/%252e%252e/ HTTP/1.1", b"GET /atropos/../healthz HTTP/1.1",
    b"GET /atropos/..%2f..%2fhealthz HTTP/1.1", b"GET /atropos/%00/info HTTP/1.1",
    b"GET http://evil.example/api/v1/runs HTTP/1.1", b"GET //evil.example/api/v1 HTTP/1.1", b"GET atropos/x HTTP/1.1",
    b"OPTIONS * HTTP/1.1", b"CONNECT localhost:80 HTTP/1.1", b"GET /api/v1/runs", b"GET /api/v1/runs HTTP/9.9",
    b"GET  /api/v1/runs HTTP/1.1", b"get /api/v1/runs HTTP/1.1", b"G\0T /api/v1/runs HTTP/1.1",
    b"\x16\x03\x01\x02\0\x01", b"GET /api/v1/runs#a HTTP/1.1", b"GET /api/v1/runs?\xff HTTP/1.1",
    b"GET /api/v1/ HTTP/2.0", b"PRI * HTTP/2.0", b"", b"GET /api/v1/" + b"../" * 50_000 + b" HTTP/1.1",
    b"GET /api/v1/runs?" + b"a&" * 50_000 + b" HTTP/1.1",
]  # fmt: skip


@stores_nothing
@pytest.mark.parametrize("line", LINES, ids=lambda line: repr(line)[:60])
def test_an_odd_request_line_is_no_error_of_ours(web: Web, line: bytes) -> None:
    # Whose sending ends at once is hardly ever answered: the answer is waited for where there is one.
    assert 0 < status_of(web.exchange(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")) < 500
    assert status_of(web.exchange(line + b"\nHost: localhost\nConnection: close\n\n", half_close=True)) < 500


HEADERS = {
    "a megabyte": b"X: " + b"a" * MIB,
    "a name of a megabyte": b"X" * MIB + b": a",
    "100,000 of them": b"\r\n".join(b"X%d: a" % number for number in range(100_000)),
    "folded": b"X: a\r\n b",
    "without a colon": b"X",
    "a NUL": b"X: a\0b",
    "a line feed": b"X: a\nY: b",
    "a carriage return": b"X: a\rY: b",
    "no name": b": a",
    "a space before the colon": b"X : a",
    "two hosts": b"Host: localhost\r\nHost: evil.example",
    "a cookie of 200 kB": b"Cookie: " + b"a=b; " * 40_000,
    "an upgrade": b"Connection: Upgrade\r\nUpgrade: websocket",
    "an upgrade to HTTP 2": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
    "an expectation": b"Expect: the unexpected",
}


@stores_nothing
@pytest.mark.parametrize("name", HEADERS)
def test_odd_headers_are_taken_or_refused(web: Web, target: Target, name: str) -> None:
    head = HEADERS[name] + b"\r\n\r\n"
    assert status_of(web.request(f"GET /api/v1/runs HTTP/1.1\r\nAuthorization: Token {target.token}", head)) < 500
    assert status_of(web.request(f"GET /atropos/{target.external.address.key}/info HTTP/1.1", head)) < 500


def test_requests_in_one_piece_are_answered_in_their_order(web: Web, target: Target) -> None:
    head = f"{native(target)}\r\nHost: localhost\r\n".encode()
    bodies = [json_of(good() | {"key": f"pipelined {number}"}) if number % 3 else b"x" for number in range(20)]
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answers = web.exchange(b"".join(head + sized(body) for body in bodies) + last)
    statuses = [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [*(201 if number % 3 else 400 for number in range(20)), 200]
    stored = ScoredGroup.objects.filter(key__startswith="pipelined").order_by("id").values_list("key", flat=True)
    assert list(stored) == [f"pipelined {number}" for number in range(20) if number % 3]


@stores_nothing
def test_a_request_in_the_body_of_another_is_not_answered(web: Web, target: Target) -> None:
    hidden = f"{native(target)}\r\nHost: localhost\r\n".encode() + sized(GROUP)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(hidden) + hidden + b"\r\n0\r\n\r\n"
    for framed in (sized(hidden), chunked):
        answer = web.request(native(target), framed)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b'"malformed"' in answer
