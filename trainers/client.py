"""The trainer's view of the control plane: register, fetch batches, acknowledge steps, announce files, finish.

The only place in the trainers that retries. A lost connection, a 429 or a 5xx is asked again with growing pauses until
an answer comes or the budget is spent, because the web server may be restarted and Postgres may be away for a while
in the middle of a long run. Every request is safe to repeat: batches are immutable, the writes are idempotent.
"""

import hashlib
import logging
import os
import random
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Self, TypeVar

import httpx
import msgspec

from trainers import wire
from trainers.errors import ControlPlaneRefused, ControlPlaneUnreachable, RunOver, StaleEpoch

_log = logging.getLogger(__name__)

_RETRY_BUDGET_S = 600.0
"""How long the control plane may be away: longer than a restart of everything on a slow machine."""
_LONGEST_PAUSE_S = 5.0
_TIMEOUT_S = 30.0

_T = TypeVar("_T")


class FetchedBatch(NamedTuple):
    """A batch as it came over the wire; the bytes are verified against the hash."""

    body: bytes
    """MessagePack of a `wire.TrainingBatch`."""
    sha256: str


class ControlPlane:
    """One trainer attempt's connection to its run. After `register` every write carries the attempt's epoch."""

    def __init__(
        self,
        url: str,
        token: str,
        run: str,
        *,
        retry_budget_s: float = _RETRY_BUDGET_S,
        first_pause_s: float = 0.1,
    ) -> None:
        self._http = httpx.Client(
            base_url=f"{url.rstrip('/')}/api/v1/runs/{run}/",
            headers={"Authorization": f"Token {token}", "Accept": "application/json"},
            timeout=_TIMEOUT_S,
            trust_env=False,  # a proxy meant for the outside world must not get between trainer and control plane
        )
        self._retry_budget_s = retry_budget_s
        self._first_pause_s = first_pause_s

    @classmethod
    def from_environment(cls) -> Self:
        """Read ROLLYARD_URL, ROLLYARD_TOKEN and ROLLYARD_RUN. Raises KeyError naming the one that is missing."""
        return cls(os.environ["ROLLYARD_URL"], os.environ["ROLLYARD_TOKEN"], os.environ["ROLLYARD_RUN"])

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def register(self, world_size: int, hostname: str, pid: int) -> wire.Registration:
        """Become the run's trainer; every trainer that registered before can write no more."""
        body = {"world_size": world_size, "hostname": hostname, "pid": pid}
        registration = self._decode(self._post("trainer", body), wire.Registration)
        self._http.headers[wire.EPOCH_HEADER] = str(registration.epoch)
        return registration

    def poll_batch(self, step: int, *, wait_s: float = 20.0) -> FetchedBatch | None:
        """Ask for the batch of `step`; the server may hold the question for `wait_s`. None: there is none yet."""
        timeout = httpx.Timeout(_TIMEOUT_S, read=wait_s + _TIMEOUT_S)
        answer = self._request(
            "GET", f"batches/{step}", params={"wait_s": wait_s}, headers={"Accept": wire.MSGPACK}, timeout=timeout
        )
        if answer.status_code == httpx.codes.NO_CONTENT:
            return None
        return FetchedBatch(answer.content, answer.headers[wire.SHA256_HEADER])

    def fetch_batch(self, step: int, *, wait_s: float = 20.0) -> FetchedBatch:
        """Wait for the batch of `step`, however long generation takes. The budget counts failures in a row only."""
        while (fetched := self.poll_batch(step, wait_s=wait_s)) is None:
            pass
        return fetched

    def ack_step(self, step: int, metrics: Mapping[str, float], batch_sha256: str | None = None) -> int:
        """Say that `step` is done; returns the next step the control plane expects."""
        body = wire.StepAck(metrics=dict(metrics), batch_sha256=batch_sha256)
        return int(self._post(f"steps/{step}", body).json()["next_step"])

    def announce_policy_version(self, version: wire.PolicyVersionIn) -> None:
        """Say that the weights of a version are complete on disk."""
        self._post("policy-versions", version)

    def announce_checkpoint(self, checkpoint: wire.CheckpointIn) -> None:
        """Say that a checkpoint is complete on disk."""
        self._post("checkpoints", checkpoint)

    def finish(self) -> None:
        """Say that the last step is done and nothing more will come."""
        self._post("trainer/finish", {})

    def _post(self, path: str, body: Any) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        return self._request("POST", path, content=msgspec.json.encode(body), headers=headers)

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        deadline = time.monotonic() + self._retry_budget_s
        pause_s = self._first_pause_s
        while True:
            answer, complaint = None, ""
            try:
                answer = self._http.request(method, path, **options)
                complaint = _transient_complaint(answer)
            except httpx.TransportError as error:
                complaint = f"{type(error).__name__}: {error}"
            if answer is not None and not complaint:
                _raise_refusal(answer)
                return answer
            if answer is not None:
                pause_s = max(pause_s, _retry_after_s(answer))
            if time.monotonic() + pause_s > deadline:
                budget = f"{self._retry_budget_s:.0f} s"
                raise ControlPlaneUnreachable(f"{method} {path}: no usable answer within {budget}; last: {complaint}")
            _log.warning("%s %s: %s; asking again in %.1f s", method, path, complaint, pause_s)
            time.sleep(pause_s * random.uniform(0.8, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @staticmethod
    def _decode(answer: httpx.Response, of_type: type[_T]) -> _T:
        return msgspec.json.decode(answer.content, type=of_type)


def _transient_complaint(answer: httpx.Response) -> str:
    """Why this answer is worth another try; empty when it is not."""
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS or answer.status_code >= 500:
        return f"status {answer.status_code}"
    expected = answer.headers.get(wire.SHA256_HEADER)
    if expected is not None and hashlib.sha256(answer.content).hexdigest() != expected:
        return "the body does not have the promised SHA-256"
    return ""


def _raise_refusal(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    code, detail = str(problem.get("code", "")), str(problem.get("detail", answer.text[:200]))
    if answer.status_code == httpx.codes.GONE:
        raise RunOver(detail)
    if answer.status_code == httpx.codes.CONFLICT and code == "stale_epoch":
        raise StaleEpoch(detail)
    raise ControlPlaneRefused(answer.status_code, code, detail)


def _retry_after_s(answer: httpx.Response) -> float:
    try:
        return min(float(answer.headers.get("Retry-After", 0)), 60.0)
    except ValueError:
        return 0.0
