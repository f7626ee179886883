"""Where the ranks of several nodes learn each other's addresses, where a socket leads to the agent of the first node.

torch's own store for that, a `TCPStore`, listens on an interface and asks nobody who speaks. This one is a table of the
agent of the first node: ranks reach it over a socket that only their sandbox sees, and agents of other nodes pass on
what they are asked, with the job's key. The routes are those of `workers/meeting.py`.
"""

import http.client
import socket
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

from torch.distributed.distributed_c10d import Store

_CALL_S = 60.0
_PATIENCE = timedelta(minutes=5)
_alive: list["MeetingStore"] = []
"""torch keeps but its own half of a store that is written in Python, and aborts when the other one is gone."""


class MeetingStore(Store):
    """Keys and values that every rank sees. Waits end with a TimeoutError."""

    def __init__(self, place: Path, patience: timedelta = _PATIENCE) -> None:
        """`place`: the socket. `patience`: for which a rank waits for a key that nobody has set."""
        super().__init__()
        _alive.append(self)
        self._place = place
        self._patience_s = patience.total_seconds()

    def set(self, key: str, value: str | bytes | Sequence[int]) -> None:
        self._ask("POST", "set", key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._await(key, self._patience_s)

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("POST", "add", key, str(amount).encode())[1])

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._ask("GET", "has", key)[0] == 200 for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:  # type: ignore[override]
        for key in keys:
            self._await(key, self._patience_s if timeout is None else timeout.total_seconds())

    def delete_key(self, key: str) -> bool:
        return self._ask("POST", "delete", key)[0] == 200

    def set_timeout(self, timeout: timedelta) -> None:
        self._patience_s = timeout.total_seconds()

    def clone(self) -> "MeetingStore":
        return MeetingStore(self._place, timedelta(seconds=self._patience_s))

    def _await(self, key: str, patience_s: float) -> bytes:
        give_up_at = time.monotonic() + patience_s
        while time.monotonic() < give_up_at:
            status, value = self._ask("GET", "get", key)
            if status == 200:
                return value
        raise TimeoutError(f"no rank has set {key} within {patience_s:.0f} s: has one of them died?")

    def _ask(self, method: str, act: str, key: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body: 200, or 404 for what is not there (yet)."""
        # One for each call: torch asks from threads of its own, and seldom.
        with closing(_Connection(self._place)) as connection:
            connection.request(method, f"/meeting/{act}?{urlencode({'key': key})}", body=body)
            answer = connection.getresponse()
            given = answer.read()
        if answer.status not in (200, 404):
            raise ConnectionError(f"the meeting of ranks: {answer.status} {given[:200].decode(errors='replace')}")
        return answer.status, given


class _Connection(http.client.HTTPConnection):
    def __init__(self, place: Path) -> None:
        super().__init__("meeting", timeout=_CALL_S)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_CALL_S)
        self.sock.connect(str(self._place))
