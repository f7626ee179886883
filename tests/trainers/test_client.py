"""The client against a real HTTP server that misbehaves on purpose."""

import hashlib
import math
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
from trainers.errors import ControlPlaneRefused, ControlPlaneUnreachable, DataError, Diverged, RunEnded, Superseded


def rollout(*, logprobs: int = 2, advantages: bytes | None = None) -> wire.TrainingRollout:
    """One of two tokens, with as many logprobs."""
    return wire.TrainingRollout(
        group="g",
        index=0,
        environment="e",
        problem_key="p",
        token_ids=bytes(8),
        loss_mask=bytes(2),
        inference_logprobs=bytes(4 * logprobs),
        advantage=0.5,
        reward=1.0,
        min_policy_version=0,
        max_policy_version=0,
        advantages=advantages,
    )


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
        with pytest.raises(Superseded):
            old.ack_step(1, {})
        assert plane.ack_log == [0]


def test_server_errors_and_lost_connections_are_asked_again(plane: FakeControlPlane, client: ControlPlane) -> None:
    plane.failures = [status(503), hang_up, status(500), status(429, {"Retry-After": "0"})]
    assert client.ack_step(3, {"loss/mean": 0.5}, "ab") == 4
    assert plane.requests == ["POST steps/3"] * 5
    assert plane.acks[3] == wire.StepAck(metrics={"loss/mean": 0.5}, batch_sha256="ab")


def test_a_run_that_has_not_been_started_yet_is_waited_for(plane: FakeControlPlane, client: ControlPlane) -> None:
    plane.failures = [lambda handler: handler.problem(409, "state_conflict")] * 2  # type: ignore[attr-defined]
    assert client.register(1, "a", 1).epoch == plane.epoch
    assert plane.requests[-3:] == ["POST trainer"] * 3


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


def test_batches_come_decoded_one_after_the_other_until_the_run_is_over(
    plane: FakeControlPlane, client: ControlPlane
) -> None:
    plane.batches = {step: batch_bytes(step) for step in range(2, 5)}
    plane.over_at_step = 5
    plane.failures = [status(503), status(204), hang_up]
    received = list(client.batches(start=2, wait_s=0.0))
    assert [each.batch.step for each in received] == [2, 3, 4]
    assert [each.sha256 for each in received] == [hashlib.sha256(body).hexdigest() for body in plane.batches.values()]


def test_batches_of_a_trainer_that_was_replaced_end_with_an_error(
    plane: FakeControlPlane, client: ControlPlane
) -> None:
    plane.batches[0] = batch_bytes(0)
    batches = client.batches()
    next(batches)
    plane.epoch += 1
    with pytest.raises(Superseded):
        next(batches)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (wire.TrainingBatch(run="run-2", step=0, temperature=1.0, rollouts=[]), "of run run-2"),
        (wire.TrainingBatch(run=RUN, step=1, temperature=1.0, rollouts=[]), "got step 1"),
        (wire.TrainingBatch(run=RUN, step=0, temperature=1.0, rollouts=[rollout(logprobs=1)]), "inference_logprobs"),
        (wire.TrainingBatch(run=RUN, step=0, temperature=1.0, rollouts=[rollout(advantages=b"")]), "advantages"),
    ],
)
def test_what_a_batch_says_is_verified_unless_one_does_not_want_it(
    plane: FakeControlPlane, client: ControlPlane, wrong: wire.TrainingBatch, complaint: str
) -> None:
    plane.batches[0] = msgspec.msgpack.encode(wrong)
    with pytest.raises(DataError, match=complaint):
        next(client.batches())
    assert next(client.batches(verify=False)).batch == wrong


def test_a_run_that_is_over_says_so_at_once(plane: FakeControlPlane, client: ControlPlane) -> None:
    plane.over_at_step = 2
    with pytest.raises(RunEnded):
        client.fetch_batch(2)
    assert plane.requests == ["GET batches/2"]


def test_a_refusal_is_not_retried(plane: FakeControlPlane, client: ControlPlane) -> None:
    plane.failures = [lambda handler: handler.problem(403, "wrong_scope")]  # type: ignore[attr-defined]
    with pytest.raises(ControlPlaneRefused, match="wrong_scope"):
        client.finish()
    assert plane.requests == ["POST trainer/finish"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_not_finite_is_refused_by_name(
    plane: FakeControlPlane, client: ControlPlane, value: float
) -> None:
    with pytest.raises(Diverged, match=f"step 3: x is {value}"):
        client.ack_step(3, {"loss/mean": 0.5, "x": value})
    assert plane.requests == []


def test_files_are_announced_and_the_run_is_finished(plane: FakeControlPlane, client: ControlPlane) -> None:
    client.announce_policy_version(wire.PolicyVersionIn(version=1, path="/w", manifest_sha256="a", size_bytes=3))
    client.announce_checkpoint(wire.CheckpointIn(step=1, path="/c", manifest_sha256="b", size_bytes=4))
    client.finish()
    assert (plane.versions[1].path, plane.checkpoints[1].size_bytes, plane.finished) == ("/w", 4, True)


def test_an_announcement_has_as_long_as_its_files_may_take_to_be_fetched(plane: FakeControlPlane) -> None:
    with serving(plane) as url, ControlPlane(url, "t", RUN, retry_budget_s=0, first_pause_s=0.001) as client:
        client.register(1, "a", 1)
        plane.failures = [status(504)] * 3
        client.announce_checkpoint(wire.CheckpointIn(step=1, path="/c", manifest_sha256="b", size_bytes=2 * 10**9))
        assert plane.requests[-4:] == ["POST checkpoints"] * 4
        plane.failures = [status(504)]
        with pytest.raises(ControlPlaneUnreachable):
            client.announce_checkpoint(wire.CheckpointIn(step=2, path="/c", manifest_sha256="b", size_bytes=0))


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLYARD_URL", raising=False)
    with pytest.raises(KeyError, match="ROLLYARD_URL"):
        ControlPlane.from_environment()
