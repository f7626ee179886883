"""TLS lines from another machine: whose they are, and what passes."""

import asyncio
import ctypes
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from controlplane import certificate
from controlplane.home import Home
from environments import servers
from workers import lines

KEY = "sesame"
SO_ATTACH_FILTER = 26


@asynccontextmanager
async def echo(place: Path, ended: asyncio.Semaphore) -> AsyncIterator[None]:
    """A server that says what it hears, with its name before."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(2**16):
            writer.write(place.name.encode() + b":" + chunk)
            await writer.drain()
        writer.close()
        ended.release()

    async with await asyncio.start_unix_server(answer, place):
        yield


@asynccontextmanager
async def answering(
    directory: Path, ended: asyncio.Semaphore | None = None
) -> AsyncIterator[tuple[tuple[str, int], str]]:
    """Lines to two echoes; their address and certificate. `ended` is released for each connection that has."""
    ended = ended or asyncio.Semaphore(0)
    pem, secret = certificate.files(Home(directory))
    targets = {name: directory / name for name in ("postgres", "redis")}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with (
            echo(targets["postgres"], ended),
            echo(targets["redis"], ended),
            lines.serving(listening, pem, secret, KEY, targets),
        ):
            yield listening.getsockname()[:2], pem.read_text()


async def ask(place: Path, said: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(place)
    writer.write(said)
    await writer.drain()
    try:
        async with asyncio.timeout(30):
            return await reader.read(2**16)
    finally:
        writer.close()


def test_each_socket_leads_to_its_server(tmp_path: Path) -> None:
    async def play() -> None:
        own = {name: tmp_path / f"own-{name}" for name in ("postgres", "redis")}
        async with answering(tmp_path) as (address, pem), lines.opened(address, pem, KEY, own):
            assert await ask(own["postgres"], b"one") == b"postgres:one"
            assert await ask(own["redis"], b"two") == b"redis:two"
            assert all(place.stat().st_mode & 0o077 == 0 for place in own.values())

    asyncio.run(play())


@pytest.mark.parametrize(("key", "target"), [("sesam", "redis"), ("", "redis"), (KEY, "etc")])
def test_wrong_key_or_target_reaches_nobody(tmp_path: Path, key: str, target: str) -> None:
    async def play() -> None:
        own = {target: tmp_path / "own"}
        async with answering(tmp_path) as (address, pem), lines.opened(address, pem, key, own):
            assert await ask(own[target], b"hello") == b""

    asyncio.run(play())


def test_another_certificate_is_not_spoken_to(tmp_path: Path) -> None:
    async def play() -> None:
        (tmp_path / "other").mkdir()
        other, _ = certificate.files(Home(tmp_path / "other"))
        own = {"redis": tmp_path / "own"}
        async with answering(tmp_path) as (address, _), lines.opened(address, other.read_text(), KEY, own):
            assert await ask(own["redis"], b"hello") == b""

    asyncio.run(play())


def no_longer_hear(address: tuple[str, int]) -> None:
    """Have our ends of the connections to an address get nothing any more, as if their machine had lost its power."""
    refuse_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: keep no byte of any packet
    program = struct.pack("HL", 1, ctypes.addressof(refuse_all))
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor))) as each:
            if each.family == socket.AF_INET and each.getpeername() == address:
                each.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def test_line_whose_other_end_has_vanished_ends_whether_something_is_on_its_way_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_PROBE_S", 1)
    monkeypatch.setattr(servers, "_SILENT_S", 2)

    async def play() -> None:
        own, ended = {"redis": tmp_path / "own"}, asyncio.Semaphore(0)
        async with answering(tmp_path, ended) as (address, pem), lines.opened(address, pem, KEY, own):
            both = [await asyncio.open_unix_connection(own["redis"]) for _ in range(2)]
            for reader, writer in both:
                writer.write(b"one")
                assert await reader.read(2**16) == b"redis:one"
            no_longer_hear(address)
            both[0][1].write(b"two")
            async with asyncio.timeout(30):
                assert [await reader.read() for reader, _ in both] == [b"", b""]
                for _ in both:
                    await ended.acquire()
            for _, writer in both:
                writer.close()

    asyncio.run(play())


def test_nothing_is_said_in_the_clear_and_a_stranger_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_HELLO_S", 0.2)

    async def play() -> None:
        async with answering(tmp_path) as (address, _):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(f"{KEY} redis\n".encode())
            async with asyncio.timeout(30):
                assert b"redis" not in await reader.read()
            writer.close()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            silent, leaving = await asyncio.open_connection(*address, ssl=context)
            async with asyncio.timeout(30):
                assert await silent.read() == b""
            leaving.close()

    asyncio.run(play())


def test_certificate_is_made_once_and_is_closed_to_others(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in certificate.files(Home(tmp_path))]
    assert first == [path.read_bytes() for path in certificate.files(Home(tmp_path))]
    assert all(path.stat().st_mode & 0o077 == 0 for path in certificate.files(Home(tmp_path)))
