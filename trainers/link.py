"""The ranks' connection to the control plane: rank 0 sends the requests and broadcasts the answers over gloo.

Rank 0 may wait for a batch for hours, or read a checkpoint for one, but a collective times out. So it looks again and
again whether it is done, each time for a short while, and tells the others. An error on rank 0 ends its process, and
torchrun then ends the others.
"""

import faulthandler
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist

from trainers import wire
from trainers.client import ControlPlane, FetchedBatch
from trainers.errors import RunEnded

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_NOTHING = FetchedBatch(b"", "")
_LOOK_S = 20.0
"""For which rank 0 looks whether its work is done before it tells the others that it is not."""
HANG_DUMP_S = 600.0
"""Seconds without a broadcast after which every rank dumps the stacks of its threads to its log, and again each time
they have passed: a rank that hangs in a collective or a library cannot report it otherwise. Longer than most steps."""


class RunLink:
    """Connection of all ranks to the run. Methods are collective, so every rank must call them in the same order,
    unless their docstring says otherwise."""

    def __init__(self) -> None:
        self.is_main = dist.get_rank() == 0
        self._plane = ControlPlane.from_environment() if self.is_main else None
        self._over = False

    def register(self) -> wire.TrainerRegistration:
        """Register this trainer, which fences off every one before it; the answer is broadcast."""
        answer = b""
        if self._plane is not None:
            registration = self._plane.register(dist.get_world_size(), socket.gethostname(), os.getpid())
            answer = msgspec.msgpack.encode(registration)
        return msgspec.msgpack.decode(self._broadcast_bytes(answer), type=wire.TrainerRegistration)

    def next_batch(self, step: int) -> FetchedBatch | None:
        """Wait for the batch of `step`, without a deadline; it is broadcast. None when the run is over, or our time."""
        fetched = self._await(lambda: self._poll(step)) or _NOTHING
        body = self._broadcast_bytes(fetched.body)
        return FetchedBatch(body, self._broadcast_bytes(fetched.sha256.encode()).decode()) if body else None

    def is_over(self) -> bool:
        """Whether an answer to rank 0 was that the run is over; broadcast."""
        return bool(self.broadcast(int(self._over)))

    def is_time_over(self) -> bool:
        """Whether rank 0 was told to save and leave; broadcast."""
        return bool(self.broadcast(int(_is_time_over())))

    @classmethod
    def do_on_main(cls, work: Callable[[], _T]) -> _T | None:
        """Have rank 0 do what may take longer than a collective; returns what comes of it there, None on the others.

        It is done in a thread, and so is no collective itself. Raises what it raises, on rank 0 only: no other rank
        gets past this then.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="slow") as pool:
            tasks = [pool.submit(work)] if dist.get_rank() == 0 else []
            results = cls._await(lambda: [task.result() for task in wait(tasks, _LOOK_S).done] or None)
        return results[0] if results else None

    @classmethod
    def _await(cls, look: Callable[[], _T | None]) -> _T | None:
        """Have rank 0 look until it finds something, and return that there; the others wait for as long."""
        while True:
            found = look() if dist.get_rank() == 0 else None
            if cls.broadcast(int(found is not None)):
                return found

    @staticmethod
    def broadcast(number: int) -> int:
        """Return rank 0's number on every rank; what the others pass is ignored."""
        faulthandler.dump_traceback_later(HANG_DUMP_S, repeat=True)  # restarts the timer
        cell = torch.tensor([number], dtype=torch.int64)
        dist.broadcast(cell, src=0)
        return int(cell)

    @staticmethod
    def barrier() -> None:
        """Return once every rank has called this. A rank that died before it keeps the others here until torchrun ends
        them."""
        dist.all_reduce(torch.zeros(1))

    def ack_step(
        self,
        step: int,
        metrics: Mapping[str, float],
        batch_sha256: str | None = None,
        token_values: Sequence[wire.TokenValuesIn] = (),
    ) -> None:
        """Acknowledge a step. Not collective, like `send`."""
        self.send(lambda plane: plane.ack_step(step, metrics, batch_sha256, token_values))

    def finish(self) -> None:
        """Report that the last step is done. Not collective, like `send`."""
        self.send(lambda plane: plane.finish())

    def send(self, request: Callable[[ControlPlane], object]) -> None:
        """Make a request on rank 0; the other ranks do nothing. Not collective.

        An answer that the run is over reaches the other ranks with the next `next_batch` or `is_over`. Raises what the
        client raises, on rank 0 only. One that may take longer than a collective goes through `do_on_main`.
        """
        if self._plane is None or self._over:
            return
        try:
            request(self._plane)
        except RunEnded as error:
            self._end(error)

    def _poll(self, step: int) -> FetchedBatch | None:
        """None: there is none yet. When the run or our time is over, an empty one."""
        assert self._plane is not None
        if not self._over and not _is_time_over():
            try:
                return self._plane.poll_batch(step)
            except RunEnded as error:
                self._end(error)
        return _NOTHING

    def _end(self, error: RunEnded) -> None:
        _log.info("the run is over: %s", error)
        self._over = True

    @classmethod
    def _broadcast_bytes(cls, data: bytes) -> bytes:
        length = cls.broadcast(len(data))
        if dist.get_world_size() == 1 or length == 0:
            return data
        buffer = torch.frombuffer(bytearray(data or length), dtype=torch.uint8)
        dist.broadcast(buffer, src=0)
        return buffer.numpy().tobytes()


def _is_time_over() -> bool:
    file = os.environ.get(wire.TIME_OVER_VARIABLE)
    return file is not None and Path(file).exists()
