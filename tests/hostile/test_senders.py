"""Eight hostile senders at once: what they may cost the web process together.

What they cost others in time is a benchmark (`benchmarks/hostile_senders.py`).
"""

import gzip
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import psutil
import pytest

from tests.hostile.application import Target
from tests.hostile.server import MIB, Web, atropos, native, only, sized, status_of

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
SENDERS = 8
ALLOWED_BYTES = 64 * MIB
LARGE_BYTES = 60 * MIB
FORM = "POST /login/ HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded"


@cache
def bomb() -> bytes:
    """470 MB of brackets."""
    return gzip.compress(b"[" * (470 * 10**6), 9)


@cache
def large(filling: bytes) -> bytes:
    return filling * (LARGE_BYTES // len(filling))


def gzipped(head: str) -> bytes:
    return only(head) + b"Content-Encoding: gzip\r\n" + sized(bomb())


KINDS: dict[str, tuple[Callable[[Target], bytes], set[int]]] = {
    "forms": (lambda _: only(FORM) + sized(large(b"a=%41&")), {413}),
    "text": (lambda _: only("POST /login/ HTTP/1.1\r\nContent-Type: text/plain") + sized(large(b"a")), {413}),
    "bombs of strangers": (lambda target: gzipped(atropos(target, "x" * 40)), {404}),
    "bombs": (lambda target: gzipped(atropos(target)), {413}),
    "bombs by the other door": (lambda target: gzipped(native(target)), {400, 413, 422}),
    "bodies of strangers": (lambda target: only(native(target, "ry_" + "x" * 60)) + sized(large(b"[")), {401}),
    "bodies of readers": (lambda target: only(native(target, target.reader)) + sized(large(b"[")), {403}),
    "bodies for a view": (lambda _: only("POST /api/v1/runs HTTP/1.1") + sized(large(b"[")), {401}),
}


@pytest.mark.usefixtures("nothing_stored")
@pytest.mark.parametrize("name", KINDS)
def test_eight_at_once_are_refused_and_take_little_memory_together(web: Web, target: Target, name: str) -> None:
    build, expected = KINDS[name]
    request = build(target)
    pieces = [request[at : at + MIB] for at in range(0, len(request), MIB)]
    before = psutil.Process(web.process.pid).memory_info().rss
    Path(f"/proc/{web.process.pid}/clear_refs").write_text("5")  # the peak begins anew
    with ThreadPoolExecutor(SENDERS) as senders:
        answers = list(senders.map(lambda _: web.exchange(*pieces), range(2 * SENDERS)))
    lines = Path(f"/proc/{web.process.pid}/status").read_text().splitlines()
    grown = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")) - before
    statuses = {status_of(answer) for answer in answers}
    print(f"{name}: {statuses} with {grown / MIB:+.1f} MiB")
    # Who sends on after the answer may lose it with the connection.
    assert statuses - {0} <= expected
    assert grown < ALLOWED_BYTES
