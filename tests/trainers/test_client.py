"""The client against a real HTTP server that misbehaves on purpose."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.trainers.control_plane import RUN, FakeControlPlane, serving
from trainers import wire
from trainers.client import ControlPlane
from trainers.errors import ControlPlaneRefused, ControlPlaneUnreachable, RunOver, StaleEpoch


@pytest.fixture
def plane(tmp_path: Path) -> FakeControlPlane:
    return FakeControlPlane({}, tmp_path)


@pytest.fixture
def client(plane: FakeControlPlane) -> Iterator[ControlPlane]:
    with serving(plane) as url, ControlPlane(url, "secret", RUN, retry_budget_s=5, first_pause_s=0.001) as client:
        client.register(1, "host", 1)
        plane.requests.clear()
        yield client


def status(code: int, headers: dict[str, str] | None = None) -> Any:
    return lambda handler: handler.answer(code, b"{}", headers)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def batch_bytes(step: int) -> bytes:
    return msgspec.msgpack.encode(wire.TrainingBatch(run=RUN, step=step, temperature=1.0, rollouts=[]))


def test_registering_raises_the_epoch_and_fences_the_older_trainer(plane: FakeControlPlane) -> None:
    with serving(plane) as url, ControlPlane(url, "t", RUN) as old, ControlPlane(url, "t", RUN) as new:
        assert old.register(1, "a", 1).epoch == 1
        assert old.ack_step(0, {"loss/mean": 1.0}) == 1
        assert new.register(1, "b", 2).epoch == 2
        with pytest.raises(StaleEpoch):
            old.ack_step(1, {})
        assert plane.ack_log == [0]


def test_server_errors_and_lost_connections_are_asked_again(plane: FakeControlPlane, client: ControlPlane) -> None:
    plane.failures = [status(503), hang_up, status(500), status(429, {"Retry-After": "0"})]
    assert client.ack_step(3, {"loss/mean": 0.5}, "ab") == 4
    assert plane.requests == ["POST steps/3"] * 5
    assert plane.acks[3] == wire.StepAck(metrics={"loss/mean": 0.5}, batch_sha256="ab")


def test_a_restarted_web_server_goes_unnoticed(plane: FakeControlPlane) -> None:
    plane.batches[0] = batch_bytes(0)
    with serving(plane) as url:
        client = ControlPlane(url, "t", RUN, retry_budget_s=20, first_pause_s=0.02)
        client.register(1, "a", 1)
    fetched: list[bytes] = []
    thread = threading.Thread(target=lambda: fetched.append(client.fetch_batch(0).body))
    thread.start()
    with serving(plane, port=int(url.rpartition(":")[2])):
        thread.join(timeout=20)
    client.close()
    assert fetched == [plane.batches[0]]


def test_the_budget_ends_the_retries(plane: FakeControlPlane) -> None:
    with serving(plane) as url:
        pass
    client = ControlPlane(url, "t", RUN, retry_budget_s=0.05, first_pause_s=0.01)
    with client, pytest.raises(ControlPlaneUnreachable, match="ConnectError"):
        client.register(1, "a", 1)


def test_fetching_polls_until_there_is_a_batch(plane: FakeControlPlane, client: ControlPlane) -> None:
    plane.failures = [status(204), status(204)]
    plane.batches[7] = batch_bytes(7)
    fetched = client.fetch_batch(7, wait_s=0.0)
    assert fetched == (plane.batches[7], hashlib.sha256(plane.batches[7]).hexdigest())
    assert plane.requests == ["GET batches/7"] * 3


def test_a_damaged_batch_is_fetched_again(plane: FakeControlPlane, client: ControlPlane) -> None:
    plane.failures = [status(200, {wire.SHA256_HEADER: "00"})]
    plane.batches[0] = batch_bytes(0)
    assert client.fetch_batch(0).body == plane.batches[0]


def test_a_run_that_is_over_says_so_at_once(plane: FakeControlPlane, client: ControlPlane) -> None:
    plane.over_at_step = 2
    with pytest.raises(RunOver):
        client.fetch_batch(2)
    assert plane.requests == ["GET batches/2"]


def test_a_refusal_is_not_retried(plane: FakeControlPlane, client: ControlPlane) -> None:
    plane.failures = [lambda handler: handler.problem(403, "wrong_scope")]  # type: ignore[attr-defined]
    with pytest.raises(ControlPlaneRefused, match="wrong_scope"):
        client.finish()
    assert plane.requests == ["POST trainer/finish"]


def test_files_are_announced_and_the_run_is_finished(plane: FakeControlPlane, client: ControlPlane) -> None:
    client.announce_policy_version(wire.PolicyVersionIn(version=1, path="/w", manifest_sha256="a", size_bytes=3))
    client.announce_checkpoint(wire.CheckpointIn(step=1, path="/c", manifest_sha256="b", size_bytes=4))
    client.finish()
    assert (plane.versions[1].path, plane.checkpoints[1].size_bytes, plane.finished) == ("/w", 4, True)


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLYARD_URL", raising=False)
    with pytest.raises(KeyError, match="ROLLYARD_URL"):
        ControlPlane.from_environment()
