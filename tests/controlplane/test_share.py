"""Processes that share a listening socket share the connections too."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from controlplane.home import FOR_RUNS
from controlplane.web.share import Share, SharingServer, counts_file
from tests.workers.waiting import eventually
from workers.launchers import confinement, sandbox


async def _hello(scope: dict[str, Any], receive: Callable, send: Callable) -> None:
    """Answers with the sandbox that the request is from."""
    body = scope["state"].get(FOR_RUNS, "").encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a busy machine keeps a thread from running."""
    monkeypatch.setattr("controlplane.web.share.PATIENCE_S", 0.05)
    monkeypatch.setattr("controlplane.web.share.LONGEST_PATIENCE_S", 0.5)


@contextmanager
def _serving(listening: socket.socket, share: Share, for_runs: socket.socket | None = None) -> Iterator[SharingServer]:
    # A thread stands for a process: it has an event loop, a socket and a share of its own.
    config = uvicorn.Config(_hello, lifespan="off", log_config=None)
    server = SharingServer(config, listening.dup(), share, for_runs=for_runs)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        yield server
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def two() -> Iterator[tuple[socket.socket, list[SharingServer]]]:
    with ExitStack() as stack:
        counts = stack.enter_context(counts_file(2))
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        yield listening, [stack.enter_context(_serving(listening, Share(counts.fileno(), place))) for place in (0, 1)]


def _connect(listening: socket.socket) -> socket.socket:
    client = socket.create_connection(listening.getsockname(), timeout=10)
    client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    return client


def _answered(client: socket.socket) -> bool:
    return client.recv(4096).startswith(b"HTTP/1.1 200")


def _held(servers: list[SharingServer]) -> list[int]:
    return [len(each.server_state.connections) for each in servers]


@pytest.mark.usefixtures("patience")
def test_connections_that_come_at_once_are_dealt_evenly(two: tuple[socket.socket, list[SharingServer]]) -> None:
    listening, servers = two
    clients = [_connect(listening) for _ in range(20)]
    assert all(map(_answered, clients))
    # Not exactly ten each: a process that the machine keeps from running for long misses a turn.
    assert min(_held(servers)) >= 6
    for client in clients:
        client.close()


@pytest.mark.usefixtures("patience")
def test_who_lost_its_connections_takes_the_next_ones(two: tuple[socket.socket, list[SharingServer]]) -> None:
    listening, servers = two
    clients = [_connect(listening) for _ in range(12)]
    assert all(map(_answered, clients))
    had, stayed = _held(servers)
    theirs = {connection.client for connection in servers[0].server_state.connections}
    for client in clients:
        if client.getsockname() in theirs:
            client.close()
    eventually(lambda: _held(servers) == [0, stayed])
    later = [_connect(listening) for _ in range(had)]
    assert all(map(_answered, later))
    assert _held(servers)[0] > had // 2
    for client in clients + later:
        client.close()


def test_one_that_died_with_few_connections_keeps_nobody_waiting() -> None:
    with counts_file(2) as counts, socket.create_server(("127.0.0.1", 0)) as listening:
        Share(counts.fileno(), 1)  # never serves
        with _serving(listening, Share(counts.fileno(), 0)) as server:
            clients = [_connect(listening) for _ in range(30)]
            assert all(map(_answered, clients))
            assert _held([server]) == [30]
            for client in clients:
                client.close()


def test_a_place_beyond_the_counts_is_refused_with_the_fix() -> None:
    with counts_file(2) as counts, pytest.raises(ValueError, match="place 2 of 2: start each process with a place"):
        Share(counts.fileno(), 2)


def test_a_process_that_takes_no_more_connections_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Share) -> float:
        raise RuntimeError("whatever it is")

    monkeypatch.setattr(Share, "patience_s", property(broken))
    with counts_file(1) as counts, socket.create_server(("127.0.0.1", 0)) as listening:
        server = SharingServer(
            uvicorn.Config(_hello, lifespan="off", log_config=None), listening.dup(), Share(counts.fileno(), 0)
        )
        with ThreadPoolExecutor(1) as executor:
            ended = executor.submit(server.run)
            with socket.create_connection(listening.getsockname(), timeout=10):
                assert isinstance(ended.exception(timeout=20), RuntimeError)


ASK_TWICE = """
import socket, sys
for _ in range(2):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        connection.sendall(b"GET / HTTP/1.1\\r\\nHost: here\\r\\nConnection: close\\r\\n\\r\\n")
        print(b"".join(iter(lambda: connection.recv(4096), b"")).decode().rpartition("\\r\\n")[2])
"""


@pytest.mark.skipif(bool(confinement.complaint()), reason=f"NO SANDBOX: {confinement.complaint()}")
def test_code_of_runs_is_told_apart_by_the_sandbox_that_it_is_in(tmp_path: Path) -> None:
    path = str(tmp_path / "runs")

    def ask(*inside: str) -> list[str]:
        asked = [*inside, sys.executable, "-c", ASK_TWICE, path]
        return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout.split()

    bwrap = [sandbox.find_program(), "--unshare-net", "--dev-bind", "/", "/"]
    with (
        counts_file(1) as counts,
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_UNIX) as for_runs,
    ):
        for_runs.bind(path)
        for_runs.listen()
        with _serving(listening, Share(counts.fileno(), 0), for_runs.dup()):
            outside, *sandboxes = ask(), ask(*bwrap), ask(*bwrap)
    assert all(len(set(asked)) == 1 for asked in (outside, *sandboxes))
    assert len({asked[0] for asked in (outside, *sandboxes)}) == 3
