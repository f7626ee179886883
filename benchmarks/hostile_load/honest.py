"""An honest client: stores groups, fetches its batch, looks at the page of its run, in turn, with a pause between."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.hostile_load.target import SHAPE, Target
from benchmarks.wire_load import payloads
from benchmarks.wire_load.connection import SUCCESS, Address, Connection
from benchmarks.wire_load.figures import Figures, percentile
from trainers.wire import EPOCH_HEADER

PAUSE_S = 0.01
TIMEOUT_S = 30.0
CONNECTIONS = 4
"""That it takes turns with, so that it meets every web process."""
OPERATIONS = ("submit", "fetch", "page")


@dataclass
class Seen:
    """What the client saw."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in OPERATIONS})
    refused: int = 0
    """Answers that were no success, or none."""

    @property
    def count(self) -> int:
        return sum(map(len, self.seconds.values()))

    def p50_ms(self) -> Figures:
        """By operation; infinite for one that never succeeded."""
        return {name: 1000 * percentile(each, 0.5) if each else float("inf") for name, each in self.seconds.items()}


class Honest:
    """The client, whose requests are made beforehand."""

    def __init__(self, target: Target) -> None:
        self._target = target
        authorization = {"Authorization": f"Token {target.token}"}
        run = f"/api/v1/runs/{target.run}"
        kind = {"Content-Type": "application/msgpack"}
        body = payloads.native_group(np.random.default_rng(7), SHAPE)
        self._submit = payloads.Request(target.site, f"{run}/groups", authorization | kind, body)
        asks = {**authorization, EPOCH_HEADER: str(target.epoch)}
        self._others = {
            "fetch": target.site.head("GET", f"{run}/batches/0?wait_s=10", asks),
            "page": target.site.head("GET", f"/runs/{target.run}/", {"Cookie": target.session}),
        }
        self._stamp = 0
        self._connections: Sequence[Connection] = ()

    def work(self, seconds: float) -> Seen:
        """Do everything in turn for so long."""
        seen = Seen()
        self._renew(self._target.site)
        until, turn = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            connection = self._connections[turn % CONNECTIONS]
            for name in OPERATIONS:
                self._do(name, connection, seen)
                time.sleep(PAUSE_S)
            turn += 1
        return seen

    def _do(self, name: str, connection: Connection, seen: Seen) -> None:
        self._stamp += 1
        request = self._others.get(name) or self._submit.stamped(self._stamp)
        began = time.monotonic()
        try:
            succeeded = connection.exchange(request).status in SUCCESS | {202}
        except (OSError, ValueError):
            connection.close()
            succeeded = False
        if succeeded:
            seen.seconds[name].append(time.monotonic() - began)
        else:
            seen.refused += 1

    def _renew(self, site: Address) -> None:
        for connection in self._connections:
            connection.close()
        self._connections = [Connection(site, TIMEOUT_S) for _ in range(CONNECTIONS)]
