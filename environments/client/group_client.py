"""Send scored groups to a run from outside, and play its own problems: the client of an environment.

    with GroupClient(url, token, run, spool_dir="spool") as client:
        client.submit(groups)

Groups travel as MessagePack with packed arrays, and every one has a key before it is sent the first time, so whatever
is sent again is stored once. When the control plane is away for longer than the retry budget, groups go to files in
``spool_dir`` and are sent, oldest first, as soon as it answers again. Needs neither Django, torch nor numpy. Its
counterpart for trainers is `trainers.client`.
"""

import logging
import os
import random
import sys
import time
import uuid
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import httpx
import msgspec

from environments.client.http import (
    ApiConnection,
    ClientError,
    Refused,
    Unreachable,
    retry_after_s,
    start_reason,
)
from environments.client.spool import Spool, SpoolFull
from environments.types import Claim, Claims, PackedRollout, PackedScoredGroup, PlayedGroup, PlayedRollout

__all__ = ["Claim", "Claims", "ClientError", "Flushed", "GroupClient", "Refused", "SpoolFull", "Unreachable", "pack"]

_log = logging.getLogger(__name__)

RETRY_BUDGET_S = 60.0
MAX_SPOOL_BYTES = 4 * 2**30
MAX_REQUEST_BYTES = 16 * 2**20
"""A quarter of what the server takes, unless it is set up otherwise. A larger group goes alone."""
MAX_REQUEST_GROUPS = 64
_OF_THE_GROUPS = {400, 409, 413, 422}
"""Refusals of what a request holds. Any other is one of the token, the address or the run."""
_HEADERS = {"Content-Type": "application/msgpack"}

_encode = msgspec.msgpack.Encoder().encode
_decode_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode

T = TypeVar("T")


class Flushed(NamedTuple):
    """What became of the spool."""

    groups: int
    """Sent and stored."""
    refused: list[Path]
    """Files with groups that were refused for what they hold. They are not retried."""


class _Held(msgspec.Struct):
    held: list[str]


class _Settled(msgspec.Struct):
    state: str


class GroupClient:
    """One environment's connection to a run. The token needs the scope `submit`. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        token: str,
        run: str,
        spool_dir: str | Path | None = None,
        *,
        retry_budget_s: float = RETRY_BUDGET_S,
        max_spool_bytes: int = MAX_SPOOL_BYTES,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        first_pause_s: float = 0.1,
    ) -> None:
        """Without ``spool_dir`` groups that cannot be sent within the budget raise Unreachable."""
        self._connection = ApiConnection(url, token, run, retry_budget_s=retry_budget_s, first_pause_s=first_pause_s)
        self._spool = None if spool_dir is None else Spool(Path(spool_dir) / run, max_spool_bytes)
        self._max_request_bytes = max_request_bytes
        self._is_away = False
        """Whether the last request ended in the spool: the next is then sent without a retry."""
        self._resume_at = 0.0
        """Monotonic time before which the server asked us to send nothing more."""

    @classmethod
    def from_environment(cls, spool_dir: str | Path | None = None) -> Self:
        """Read ROLLYARD_URL, ROLLYARD_TOKEN and ROLLYARD_RUN. Raises KeyError naming the one that is missing."""
        return cls(os.environ["ROLLYARD_URL"], os.environ["ROLLYARD_TOKEN"], os.environ["ROLLYARD_RUN"], spool_dir)

    def close(self) -> None:
        """Close the connection. What is spooled stays."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def submit(self, groups: Iterable[PlayedGroup | PackedScoredGroup]) -> list[str]:
        """Have groups stored, or at least spooled, when this returns; their keys in order.

        They go in requests of a few megabytes, each of which is stored whole or not at all. Groups without a key get
        one, on the objects given: submitting these again, after whatever error, stores nothing twice. Slows down when
        the trainer is behind. Raises Refused, Unreachable (without a spool) and SpoolFull.
        """
        keys: list[str] = []
        for body, own in self._requests(groups):
            self._deliver(body)
            keys += own
        return keys

    def flush(self) -> Flushed:
        """Send what is spooled, oldest first. Raises Unreachable or Refused with the rest still spooled."""
        sent, refused = 0, []
        for path in [] if self._spool is None else self._spool.files():
            assert self._spool is not None
            if (body := self._spool.read(path)) is None:
                continue
            try:
                self._send(body)
            except Refused as error:
                if error.status not in _OF_THE_GROUPS:
                    raise
                refused.append(self._spool.set_aside(path))
                _log.error("%s was refused and is kept: %s", refused[-1], error)
                continue
            self._spool.remove(path)
            sent += len(_decode_list(body))
        return Flushed(sent, refused)

    def claim(self, holder: str, limit: int = 1) -> Claims:
        """Lease up to ``limit`` of the run's own problems. Renew the leases while you play, then settle them."""
        return self._ask("work/claim", {"holder": holder, "limit": limit}, Claims)

    def renew(self, tokens: Iterable[str]) -> set[str]:
        """Extend leases; returns the tokens still held. Drop the work of all others."""
        return set(self._ask("work/renew", {"tokens": list(tokens)}, _Held).held)

    def settle(
        self, token: str, problem_key: str, rollouts: Sequence[PlayedRollout], *, environment_version: str = ""
    ) -> str:
        """Store what the episodes of a claim left, failed ones too; returns the state of the group.

        Raises Refused with the code `lease_lost` when another holder has the group, or when an earlier try arrived
        whose answer was lost: in both cases the work is done with.
        """
        body = {"token": token, "problem_key": problem_key, "rollouts": rollouts}
        if environment_version:
            body["environment_version"] = environment_version
        return self._ask("work/settle", body, _Settled).state

    def _deliver(self, body: bytes) -> None:
        if self._spool is None:
            self._send(body)
            return
        try:
            self.flush()  # older ones first
            self._send(body)
        except Unreachable as error:
            _log.warning("%s; spooled", error)
            self._spool.add(body)

    def _send(self, body: bytes) -> None:
        if (wait_s := self._resume_at - time.monotonic()) > 0:
            time.sleep(wait_s)
        budget_s = 0.0 if self._is_away else None
        try:
            answer = self._connection.request(
                "POST", "groups", content=body, headers=_HEADERS, retry_reason=start_reason, budget_s=budget_s
            )
        except Unreachable as error:
            # A full queue is no absence: waiting for it is what keeps us from running ahead of the trainer.
            self._is_away = self._spool is not None and error.status != httpx.codes.TOO_MANY_REQUESTS
            raise
        self._is_away = False
        if answer.status_code == httpx.codes.ACCEPTED:
            self._resume_at = time.monotonic() + retry_after_s(answer) * random.uniform(0.75, 1.0)

    def _ask(self, path: str, body: Any, of_type: type[T]) -> T:
        answer = self._connection.request("POST", path, content=_encode(body), headers=_HEADERS)
        return msgspec.json.decode(answer.content, type=of_type)

    def _requests(self, groups: Iterable[PlayedGroup | PackedScoredGroup]) -> Iterator[tuple[bytes, list[str]]]:
        """Bodies with the keys of the groups in them."""
        encoded: list[bytes] = []
        keys: list[str] = []
        size = 0
        for group in groups:
            group.key = group.key or uuid.uuid4().hex
            one = _encode(pack(group) if isinstance(group, PlayedGroup) else group)
            if encoded and (size + len(one) > self._max_request_bytes or len(encoded) == MAX_REQUEST_GROUPS):
                yield _encode(list(map(msgspec.Raw, encoded))), keys
                encoded, keys, size = [], [], 0
            encoded.append(one)
            keys.append(group.key)
            size += len(one)
        if encoded:
            yield _encode(list(map(msgspec.Raw, encoded))), keys


def pack(group: PlayedGroup) -> PackedScoredGroup:
    """The same group with its arrays as little-endian bytes. Raises ValueError naming what no array can hold."""
    return PackedScoredGroup(
        environment=group.environment,
        problem_key=group.problem_key,
        key=group.key,
        environment_version=group.environment_version,
        rollouts=[_pack_rollout(rollout, f"rollouts.{at}") for at, rollout in enumerate(group.rollouts)],
    )


def _pack_rollout(rollout: PlayedRollout, at: str) -> PackedRollout:
    values = msgspec.structs.asdict(rollout)
    values.pop("notes", None)
    for name, code in (("token_ids", "I"), ("loss_mask", "B"), ("inference_logprobs", "f")):
        try:
            numbers: array[Any] = array(code, values[name])
        except (OverflowError, TypeError) as error:
            raise ValueError(f"{at}.{name}: {error}") from None
        if sys.byteorder == "big":
            numbers.byteswap()
        values[name] = numbers.tobytes()
    return PackedRollout(**values)
