"""The ranks' common view of the control plane: rank 0 talks, everybody hears.

Rank 0 may wait for a batch for hours, and a collective may not. So it asks in short polls and says after each how it
went: still waiting, here it is, or the run is over. An error of rank 0 ends its process, and torchrun ends the others.
"""

import faulthandler
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence

import msgspec
import torch
import torch.distributed as dist

from trainers import wire
from trainers.client import ControlPlane, FetchedBatch
from trainers.errors import RunEnded

_log = logging.getLogger(__name__)

_OVER, _WAITING = -1, -2
_SILENCE_S = 600.0
"""After so long without a word among the ranks each writes the stacks of its threads to its log, again and again: a
rank that hangs in a collective or a library can no longer say so itself. Longer than most steps."""


class RunLink:
    """Connection of all ranks to the run. Methods are collective unless they say otherwise."""

    def __init__(self) -> None:
        self.is_main = dist.get_rank() == 0
        self._plane = ControlPlane.from_environment() if self.is_main else None
        self._over = False

    def register(self) -> wire.TrainerRegistration:
        """Register this attempt; every rank gets the answer."""
        answer = b""
        if self._plane is not None:
            registration = self._plane.register(dist.get_world_size(), socket.gethostname(), os.getpid())
            answer = msgspec.msgpack.encode(registration)
        return msgspec.msgpack.decode(self._broadcast(answer), type=wire.TrainerRegistration)

    def next_batch(self, step: int) -> FetchedBatch | None:
        """Wait for the batch of `step`; None when the run is over."""
        while True:
            body, sha256, news = b"", "", _WAITING
            if self._plane is not None:
                if (fetched := self._poll(step)) is not None:
                    body, sha256 = fetched
                    news = len(body)
                if self._over:
                    news = _OVER
            news = self._broadcast_number(news)
            if news == _OVER:
                return None
            if news != _WAITING:
                return FetchedBatch(self._broadcast(body), self._broadcast(sha256.encode()).decode())

    def is_over(self) -> bool:
        """Whether rank 0 was told that the run is over."""
        return self._broadcast_number(_OVER if self._over else 0) == _OVER

    def choose(self, number: int) -> int:
        """Rank 0's number, on every rank."""
        return self._broadcast_number(number)

    def ack_step(
        self,
        step: int,
        metrics: Mapping[str, float],
        batch_sha256: str | None = None,
        token_values: Sequence[wire.TokenValuesIn] = (),
    ) -> None:
        """Acknowledge a step. Not collective, like `tell`."""
        self.tell(lambda plane: plane.ack_step(step, metrics, batch_sha256, token_values))

    def finish(self) -> None:
        """Say that the last step is done. Not collective, like `tell`."""
        self.tell(lambda plane: plane.finish())

    def tell(self, say: Callable[[ControlPlane], object]) -> None:
        """Say something on rank 0; the other ranks do nothing. Not collective.

        When the answer is that the run is over, the ranks learn it at the next `next_batch` or `is_over`.
        """
        if self._plane is None or self._over:
            return
        try:
            say(self._plane)
        except RunEnded as error:
            self._end(error)

    def _poll(self, step: int) -> FetchedBatch | None:
        assert self._plane is not None
        if self._over:
            return None
        try:
            return self._plane.poll_batch(step)
        except RunEnded as error:
            self._end(error)
            return None

    def _end(self, error: RunEnded) -> None:
        _log.info("the run is over: %s", error)
        self._over = True

    @staticmethod
    def _broadcast_number(number: int) -> int:
        faulthandler.dump_traceback_later(_SILENCE_S, repeat=True)  # counts from the last call
        cell = torch.tensor([number], dtype=torch.int64)
        dist.broadcast(cell, src=0)
        return int(cell)

    @classmethod
    def _broadcast(cls, data: bytes) -> bytes:
        length = cls._broadcast_number(len(data))
        if dist.get_world_size() == 1 or length == 0:
            return data
        buffer = torch.frombuffer(bytearray(data or length), dtype=torch.uint8)
        dist.broadcast(buffer, src=0)
        return buffer.numpy().tobytes()
