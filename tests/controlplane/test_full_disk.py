"""A disk that is really full: what is refused says so, nothing acknowledged is lost, and space is all that heals."""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.wire_load import payloads, servers
from benchmarks.wire_load.connection import Answer, Connection
from benchmarks.wire_load.payloads import Shape
from benchmarks.wire_load.servers import Server
from tests.lanes import long_lane

pytestmark = [pytest.mark.slow, pytest.mark.e2e]
DISK = "320m"
HEALED_WITHIN_S = 5.0
"""A commit takes a moment; PostgreSQL, if it had to end, the second that its supervisor waits."""
DEADLINE_S = 60.0
SHAPE = Shape(group_size=8, tokens=4000)


@contextmanager
def small_disk() -> Iterator[Path]:
    """A file system with room for an installation and little more."""
    path = Path(tempfile.mkdtemp(prefix="rollyard-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=711", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        path.rmdir()
        pytest.skip(f"NOT TESTED: only root can mount a small disk ({mounted.stderr.decode().strip()})")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
        path.rmdir()


@dataclass
class Installation:
    """A Rollyard on a disk of its own."""

    server: Server
    disk: Path

    def fill(self) -> None:
        """Leave nothing."""
        with (self.disk / "filling").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(2**16))

    def free(self) -> None:
        (self.disk / "filling").unlink()

    def submit(self, number: int) -> Answer:
        """A group of half a megabyte."""
        assert self.server.native
        body = payloads.native_group(np.random.default_rng(7), SHAPE)
        headers = {"Authorization": f"Token {self.server.token}", "Content-Type": "application/msgpack"}
        return self._send(bytes(payloads.Request(self.server.native, "/groups", headers, body).stamped(number)))

    def submit_atropos(self, number: int) -> Answer:
        assert self.server.atropos
        body = payloads.atropos_group(np.random.default_rng(7), SHAPE)
        headers = {"Content-Type": "application/json"}
        request = payloads.Request(self.server.atropos, "/scored_data", headers, body)
        return self._send(bytes(request.stamped(number)))

    def get(self, path: str) -> Answer:
        assert self.server.native
        site = self.server.native._replace(prefix="")
        return self._send(site.head("GET", path, {"Authorization": f"Token {self.server.token}"}))

    def _send(self, request: bytes) -> Answer:
        assert self.server.native
        connection = Connection(self.server.native, DEADLINE_S)
        try:
            return connection.exchange(request)
        finally:
            connection.close()

    @property
    def log(self) -> str:
        return next(self.disk.glob("*/home/logs/up.log")).read_text()

    def stored_groups(self) -> int:
        return int(self.server._ask("SELECT count(*) FROM rollouts_scoredgroup"))


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    for name in ("DJANGO_SETTINGS_MODULE", "ROLLYARD_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)  # those of the tests
    with small_disk() as disk, servers.rollyard(["batch.max_queued_rollouts=100000000"], disk) as server:
        yield Installation(server, disk)


def test_a_full_disk_is_named_and_healed_by_space_alone(installation: Installation) -> None:
    acknowledged = 0
    for number in range(3):
        assert installation.submit(number).status == 201
        acknowledged += 1
    installation.fill()

    refused, give_up_at = None, time.monotonic() + DEADLINE_S
    while refused is None:
        assert time.monotonic() < give_up_at, "the disk is full, and everything was stored"
        answer = installation.submit(100 + acknowledged)
        if answer.status == 201:  # there was room in a segment of the log that existed
            acknowledged += 1
        else:
            refused = answer
    problem = json.loads(refused.body)
    assert (refused.status, problem["code"]) == (503, "disk_full")
    assert "The disk of the database is full" in problem["detail"]
    assert "Free some space" in problem["detail"]
    assert refused.headers[b"retry-after"] == b"1"
    other = installation.submit_atropos(1)
    assert other.status == 503
    assert b"The disk of the database is full" in other.body
    ready = installation.get("/readyz")
    assert ready.status == 503
    assert "its disk is full" in ready.json()["database"]

    installation.free()
    began = time.monotonic()
    while installation.submit(10_000 + acknowledged).status != 201:
        assert time.monotonic() - began < HEALED_WITHIN_S
    print(f"healed within {time.monotonic() - began:.2f} s of the space")
    acknowledged += 1
    assert installation.get("/readyz").status == 200
    assert installation.stored_groups() == acknowledged
    assert "Traceback" not in installation.log


@long_lane("a full disk is named and healed by space alone whenever the tests run")
def test_postgresql_that_ended_on_a_full_disk_comes_back_with_the_space(installation: Installation) -> None:
    assert installation.submit(1).status == 201
    installation.fill()
    for process in installation.server.processes():
        if process.name() == "postgres":
            process.kill()
    give_up_at = time.monotonic() + DEADLINE_S
    while b"disk of the database is full" not in (refused := installation.submit(2)).body:
        assert time.monotonic() < give_up_at, refused
    assert refused.status == 503

    installation.free()
    began = time.monotonic()
    while installation.submit(3).status != 201:
        assert time.monotonic() - began < HEALED_WITHIN_S
    print(f"PostgreSQL was back within {time.monotonic() - began:.2f} s of the space")
    assert installation.stored_groups() == 2
