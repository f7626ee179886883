"""What a request may cost the server before it is refused: bombs, floods and bodies of strangers.

Run it with `-s` to see the figures. What a bomb costs is counted in bytes that are inflated, not in seconds.
"""

import gzip
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import pytest

from rollouts.doors.compression import MAX_INFLATED_BYTES, inflated
from rollouts.errors import TooLarge
from tests.hostile.application import Target
from tests.hostile.server import MIB, Web, atropos, native, only, sized

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.slow,
]
ALLOWED_BYTES = 32 * MIB


@cache
def member(byte: bytes = b"\0") -> bytes:
    """Ten megabytes in ten kilobytes."""
    return gzip.compress(byte * (10 * MIB), 9)


def one_member() -> bytes:
    """A block of deflate that refers to nothing before it can be repeated."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = compressor.compress(bytes(10 * MIB)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * 1024 + compressor.flush() + bytes(8)


BOMBS: dict[str, Callable[[], bytes]] = {
    "1024 members": lambda: member() * 1024,
    "one member": one_member,
    "brackets": lambda: member(b"[") * 1024,
    "broken at its end": lambda: member() * 1023 + member()[:-100],
    "in a bomb": lambda: gzip.compress(member() * 1024, 9),
    "in a bomb in a bomb": lambda: gzip.compress(gzip.compress(member() * 1024, 9), 9),
}
"""Ten gigabytes each, made without making them."""


@pytest.mark.usefixtures("nothing_stored")
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_takes_little_memory(web: Web, target: Target, name: str) -> None:
    bomb = BOMBS[name]()
    for head in (atropos(target), native(target)):
        request = (only(head), b"Content-Encoding: gzip\r\n", sized(bomb))
        cost = web.measure(*request)
        print(f"a bomb of {len(bomb):,} bytes ({name}): {cost}")
        assert cost.status in {400, 413, 422}
        assert cost.extra_bytes < ALLOWED_BYTES


@pytest.mark.parametrize("name", BOMBS)
def test_of_a_bomb_no_more_is_inflated_than_a_body_may_have(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    counted = 0

    class Counting:
        """Inflates, and counts what comes out."""

        def __init__(self, *options: int) -> None:
            self._real = inflater(*options)

        def decompress(self, *arguments: Any) -> bytes:
            nonlocal counted
            out = self._real.decompress(*arguments)
            counted += len(out)
            return out

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    inflater = zlib.decompressobj
    bomb = BOMBS[name]()
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    with suppress(TooLarge):  # what is a bomb only within is inflated once, and is no JSON
        inflated("gzip", bomb)
    print(f"of a bomb of {len(bomb):,} bytes ({name}) {counted:,} are inflated")
    assert 0 < counted < MAX_INFLATED_BYTES + ALLOWED_BYTES


@pytest.mark.usefixtures("nothing_stored")
@pytest.mark.parametrize("filling", [b"1", b"{}", b"[]", b'"a"', b"null"])
def test_for_a_body_that_is_wrong_in_a_million_places_there_is_no_fault_for_each(
    web: Web, target: Target, filling: bytes
) -> None:
    body = b'{"tokens":[' + b",".join([filling] * 500_000) + b"]}"
    for head in (atropos(target), native(target)):
        cost = web.measure(only(head), sized(body))
        print(f"{len(body):,} bytes of {filling.decode()}: {cost}")
        assert cost.status == 422
        assert cost.extra_bytes < 4 * ALLOWED_BYTES


@pytest.mark.usefixtures("nothing_stored")
def test_a_stranger_is_refused_before_a_large_body_is_read(web: Web, target: Target) -> None:
    for head in (native(target, token="ry_" + "x" * 60), native(target, token=""), atropos(target, key="x" * 32)):
        cost = web.measure(only(head), b"Content-Length: %d\r\n\r\n" % (60 * MIB), *[bytes(MIB)] * 60)
        print(f"60 MiB of a stranger: {cost}")
        assert cost.status in {0, 401, 404}
        assert cost.extra_bytes < ALLOWED_BYTES


@pytest.mark.usefixtures("nothing_stored")
@pytest.mark.parametrize("path", ["/api/v1/runs", "/login/", "/nowhere", "/atropos/x"])
def test_no_page_takes_a_body_beyond_the_limit(web: Web, path: str) -> None:
    chunk = b"100000\r\n" + bytes(MIB) + b"\r\n"
    for pieces in (
        (b"Content-Length: %d\r\n\r\n" % (100 * MIB), *[bytes(MIB)] * 100),
        (b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 100, b"0\r\n\r\n"),
    ):
        cost = web.measure(only(f"POST {path} HTTP/1.1"), *pieces)
        print(f"100 MiB to {path}: {cost}")
        # A stranger hears that before the end of a body that is too large.
        assert cost.status in {0, {"/atropos/x": 404, "/api/v1/runs": 401}.get(path, 403), 413}
        assert cost.extra_bytes < ALLOWED_BYTES


@pytest.mark.usefixtures("nothing_stored")
@pytest.mark.parametrize("start", [b"GET /api/v1/runs HTTP/1.1\r\nX: ", b"GET /api/v1/"])
def test_a_head_without_an_end_is_not_collected(web: Web, start: bytes) -> None:
    cost = web.measure(start, *[b"a" * MIB] * 20, b"\r\n\r\n")
    print(f"a head of 20 MiB: {cost}")
    assert cost.status in {0, 400, 414, 431}
    assert cost.extra_bytes < ALLOWED_BYTES
