"""The trainer's view of the control plane: register, fetch batches, acknowledge steps, announce files, finish.

    with ControlPlane(url, token, run) as plane:
        plane.register(world_size=1, hostname="node", pid=7)
        for batch, sha256 in plane.batches(start=0):
            plane.ack_step(batch.step, train(batch), sha256)

For our own trainers and, in runs of the kind `external`, for anybody's. Lost connections and answers such as 503 are
asked again until the budget is spent (`environments.client.http`). Every request is safe to repeat: batches are
immutable, the writes are idempotent. Its counterpart for environments is `environments.client.group_client`.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import httpx
import msgspec

from environments.client.http import TIMEOUT_S, ApiConnection, Refused, Unreachable, retry_reason, start_reason
from trainers import wire
from trainers.errors import ControlPlaneRefused, ControlPlaneUnreachable, DataError, Diverged, RunEnded, Superseded

_RETRY_BUDGET_S = 600.0
"""Seconds for which requests are retried: longer than a restart of everything on a slow machine."""
SLOWEST_BYTES_PER_S = 20e6
"""At which files are fetched from a node that shares no disk; their announcement waits there for as long."""
_WAIT_S = 20.0

_T = TypeVar("_T")

_decode_batch = msgspec.msgpack.Decoder(wire.TrainingBatch).decode


class FetchedBatch(NamedTuple):
    """A batch as it came over the wire; the bytes are verified against the hash."""

    body: bytes
    """MessagePack of a `wire.TrainingBatch`."""
    sha256: str


class ReceivedBatch(NamedTuple):
    """A batch ready to train on, and the hash to acknowledge it with."""

    batch: wire.TrainingBatch
    sha256: str


class ControlPlane:
    """One trainer's connection to its run. After `register` every write carries the fencing epoch that it was given."""

    def __init__(
        self,
        url: str,
        token: str,
        run: str,
        *,
        retry_budget_s: float = _RETRY_BUDGET_S,
        first_pause_s: float = 0.1,
    ) -> None:
        self._run = run
        self._retry_budget_s = retry_budget_s
        self._connection = ApiConnection(url, token, run, retry_budget_s=retry_budget_s, first_pause_s=first_pause_s)

    @classmethod
    def from_environment(cls) -> Self:
        """Read ROLLYARD_URL, ROLLYARD_TOKEN and ROLLYARD_RUN. Raises KeyError naming the one that is missing."""
        return cls(os.environ["ROLLYARD_URL"], os.environ["ROLLYARD_TOKEN"], os.environ["ROLLYARD_RUN"])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def register(self, world_size: int, hostname: str, pid: int) -> wire.TrainerRegistration:
        """Register as the run's trainer and take the next fencing epoch: writes of trainers that registered before are
        refused from now on. A run that has not been started yet is waited for, until the budget is spent."""
        body = {"world_size": world_size, "hostname": hostname, "pid": pid}
        answer = self._post("trainer", body, retry_reason=start_reason)
        registration = self._decode(answer, wire.TrainerRegistration)
        self._connection.headers[wire.EPOCH_HEADER] = str(registration.epoch)
        return registration

    def poll_batch(self, step: int, *, wait_s: float = _WAIT_S) -> FetchedBatch | None:
        """Long poll for the batch of `step`, for up to `wait_s` seconds. None: there is none yet."""
        timeout = httpx.Timeout(TIMEOUT_S, read=wait_s + TIMEOUT_S)
        answer = self._request(
            "GET", f"batches/{step}", params={"wait_s": wait_s}, headers={"Accept": wire.MSGPACK}, timeout=timeout
        )
        if answer.status_code == httpx.codes.NO_CONTENT:
            return None
        return FetchedBatch(answer.content, answer.headers[wire.SHA256_HEADER])

    def fetch_batch(self, step: int, *, wait_s: float = _WAIT_S) -> FetchedBatch:
        """Wait for the batch of `step`, however long generation takes. The budget counts failures in a row only."""
        while (fetched := self.poll_batch(step, wait_s=wait_s)) is None:
            pass
        return fetched

    def batches(self, start: int = 0, *, wait_s: float = _WAIT_S, verify: bool = True) -> Iterator[ReceivedBatch]:
        """The batch of step ``start``, then of every step after it, each waited for; ends when the run is over.

        Begin at the step of the checkpoint you resume from: the batches of steps that were trained already come again,
        with the same bytes. The bytes are those the control plane hashed; ``verify`` also looks at what they say, and
        raises DataError for a batch of another run or step, or with arrays of unequal lengths.
        """
        step = start
        while True:
            try:
                body, sha256 = self.fetch_batch(step, wait_s=wait_s)
            except RunEnded:
                return
            batch = _decode_batch(body)
            if verify:
                _check(batch, self._run, step)
            yield ReceivedBatch(batch, sha256)
            step += 1

    def ack_step(
        self,
        step: int,
        metrics: Mapping[str, float],
        batch_sha256: str | None = None,
        token_values: Sequence[wire.TokenValuesIn] = (),
    ) -> int:
        """Acknowledge that `step` is done; returns the next step the control plane expects. Idempotent.

        `token_values`: what the optimizer saw of some rollouts of the batch, to be looked at. Raises Diverged on a
        metric that is not finite, and asks nobody.
        """
        # JSON has no such numbers: on the way they would become a null without a name.
        if wrong := [f"{name} is {value}" for name, value in metrics.items() if not math.isfinite(value)]:
            raise Diverged(f"step {step}: {', '.join(wrong)}. Leave it out, if the weights are sound")
        body = wire.StepAck(metrics=dict(metrics), batch_sha256=batch_sha256, token_values=list(token_values))
        return int(self._post(f"steps/{step}", body).json()["next_step"])

    def announce_policy_version(self, version: wire.PolicyVersionIn) -> None:
        """Announce that the weights of a version are complete on disk. Idempotent."""
        self._announce("policy-versions", version)

    def announce_checkpoint(self, checkpoint: wire.CheckpointIn) -> None:
        """Announce that a checkpoint is complete on disk. Idempotent."""
        self._announce("checkpoints", checkpoint)

    def finish(self) -> None:
        """Report that the last step is done and nothing more will come. Idempotent."""
        self._post("trainer/finish", {})

    def _announce(self, path: str, files: wire.PolicyVersionIn | wire.CheckpointIn) -> None:
        self._post(path, files, budget_s=self._retry_budget_s + files.size_bytes / SLOWEST_BYTES_PER_S)

    def _post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        return self._request("POST", path, content=msgspec.json.encode(body), headers=headers, **options)

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._connection.request(method, path, **{"retry_reason": _retry_reason, **options})
        except Unreachable as error:
            raise ControlPlaneUnreachable(str(error)) from error
        except Refused as error:
            if error.status == httpx.codes.GONE:
                raise RunEnded(error.detail) from None
            if error.code == "stale_epoch":
                raise Superseded(error.detail) from None
            raise ControlPlaneRefused(error.status, error.code, error.detail) from error

    @staticmethod
    def _decode(answer: httpx.Response, of_type: type[_T]) -> _T:
        return msgspec.json.decode(answer.content, type=of_type)


def _retry_reason(answer: httpx.Response) -> str:
    expected = answer.headers.get(wire.SHA256_HEADER)
    if expected is not None and hashlib.sha256(answer.content).hexdigest() != expected:
        return "the body does not have the promised SHA-256"
    return retry_reason(answer)


def _check(batch: wire.TrainingBatch, run: str, step: int) -> None:
    """Raise DataError unless this is the batch of ``step``, and every rollout has arrays of one length."""
    if (batch.run, batch.step) != (run, step):
        raise DataError(f"asked for step {step} of run {run}, got step {batch.step} of run {batch.run}")
    for rollout in batch.rollouts:
        tokens = len(rollout.loss_mask)
        for name in ("token_ids", "inference_logprobs", "ref_logprobs", "advantages"):
            data = getattr(rollout, name)
            if data is not None and len(data) != 4 * tokens:
                raise DataError(
                    f"step {step}, group {rollout.group}, rollout {rollout.index}: {name} has {len(data)} bytes for "
                    f"{tokens} tokens of 4 bytes"
                )
