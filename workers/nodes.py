"""The agent of a job, as those see it who ask it: the control plane, and the agents of the job's other nodes."""

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from workers import transfers
from workers.depot import BARE, BARE_S, PREFIX
from workers.transfers import Arrival, Listed, TransferError

_CALL_S = 60.0
_LISTED_S = 3600.0
"""For which a node may read what there is to fetch."""
_AT_ONCE = 4
"""Files on their way."""
_MAX_LINE = 4096
_ANSWERS = (http.client.OK, http.client.ACCEPTED)


class NodeAway(Exception):
    """An agent did not answer, or not as it should."""


class NoAddress(NodeAway):
    """Where an agent said that it listens is nowhere."""


class Node:
    """The agent of a job. Not thread-safe."""

    def __init__(self, url: str, key: str) -> None:
        """Raises NoAddress."""
        self._address = _address(url)
        self._connection = self._connected()
        self._headers = {"Authorization": f"Bearer {key}"}

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, route: str, body: Any = None, **query: object) -> bytes:
        """Raises NodeAway, and TransferError for what the agent refuses."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            self._connection.request(method, _path(route, query), body=content, headers=self._headers)
            answer = self._connection.getresponse()
            given = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise NodeAway(f"{type(error).__name__}: {error}") from None
        if answer.status in _ANSWERS:
            return given
        raise _refusal(answer.status, given)

    def send(self, path: Path, found: Iterable[Listed], *, follow_links: bool = False) -> None:
        """Bring a directory or a file to the node, where it has its name once all of it is there. Goes on where an
        earlier attempt ended; of what has arrived as it is here no file is sent again. Raises as `ask`."""
        found = list(found)
        whole = transfers.fingerprint(found)
        there: dict[str, int] = json.loads(self.ask("GET", "arriving", path=str(path), whole=whole))

        def send(entry: Listed) -> None:
            self._send_file(path, entry, there.get(entry.name, 0), follow_links=follow_links)

        _at_once(send, (entry for entry in found if there.get(entry.name, 0) < entry.size))
        self.ask("POST", "arrived", {"path": str(path), "entries": [list(entry) for entry in found]})

    def fetch(self, path: Path, to: Path | None = None) -> None:
        """Bring a directory or a file here, under its own name or another, unless it is here. Raises as `ask`."""
        target = to or path
        wanted = self._listed(path)
        if all(transfers.has(target, entry) for entry in wanted):  # also where there is nothing
            return
        incoming = Arrival(target)
        there = incoming.received()

        def fetch(entry: Listed) -> None:
            self._fetch_file(path, entry, there.get(entry.name, 0), incoming)

        _at_once(fetch, (entry for entry in wanted if there.get(entry.name, 0) < entry.size))
        incoming.finish(wanted)

    def _listed(self, path: Path) -> list[Listed]:
        """What there is on the node, which answers nothing for as long as it still reads."""
        give_up_at = time.monotonic() + _LISTED_S
        while not (listed := self.ask("GET", "entries", path=str(path))):
            if time.monotonic() > give_up_at:
                raise NodeAway(f"it has read for {_LISTED_S:.0f} s and does not know yet what is in {path}")
        return [Listed(*entry) for entry in json.loads(listed)]

    def _send_file(self, path: Path, entry: Listed, offset: int, *, follow_links: bool) -> None:
        where = _path("file", {"path": path, "name": entry.name, "size": entry.size, "offset": offset})
        upgrade = self._headers | {"Connection": "Upgrade", "Upgrade": BARE}
        with (
            closing(self._connected()) as connection,
            transfers.opened(path, entry.name, follow_links=follow_links) as file,
        ):
            try:
                connection.request("POST", where, headers=upgrade)
                answer = connection.getresponse()
                if answer.status != http.client.SWITCHING_PROTOCOLS:
                    raise _refusal(answer.status, answer.read())
                bare: socket.socket = connection.sock
                bare.settimeout(BARE_S)
                bare.sendfile(file, offset, entry.size - offset)
                bare.shutdown(socket.SHUT_WR)
                wrong = _line(bare)
            except (OSError, http.client.HTTPException) as error:
                raise NodeAway(f"{type(error).__name__}: {error}") from None
        if wrong:
            raise TransferError(f"{entry.name}: {wrong}")

    def _fetch_file(self, path: Path, entry: Listed, offset: int, incoming: Arrival) -> None:
        headers = self._headers | {"Range": f"bytes={offset}-"}
        with closing(self._connected()) as connection:
            try:
                connection.request("GET", _path("file", {"path": path, "name": entry.name}), headers=headers)
                answer = connection.getresponse()
                if answer.status != http.client.PARTIAL_CONTENT:
                    raise _refusal(answer.status, answer.read(_MAX_LINE))
                incoming.take(entry.name, entry.size, answer.readinto, offset=offset)
            except (OSError, http.client.HTTPException) as error:
                raise NodeAway(f"{type(error).__name__}: {error}") from None

    def _connected(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self._address, timeout=_CALL_S)


def _address(url: str) -> tuple[str, int]:
    try:
        there = urlsplit(url)
        host, port = there.hostname, there.port or 80
    except ValueError as error:
        raise NoAddress(f"its agent says that it listens at {url!r}: {error}") from None
    if not host:
        raise NoAddress(f"its agent says that it listens at {url!r}, which names no host")
    return host, port


def _at_once(act: Callable[[Listed], None], entries: Iterable[Listed]) -> None:
    """Several at a time, the largest first. Raises what the first of them does that fails."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="file") as pool:
        for _ in pool.map(act, sorted(entries, key=lambda entry: -entry.size)):
            pass


def _path(route: str, query: dict[str, object]) -> str:
    return f"{PREFIX}{route}?{urlencode(query, quote_via=quote)}"


def _refusal(status: int, given: bytes) -> TransferError | NodeAway:
    told = given[:300].decode(errors="replace").strip()
    return TransferError(told) if status in (416, 422, 507) else NodeAway(f"{status}: {told}")


def _line(connection: socket.socket) -> str:
    """What is said until the connection is closed. Raises ConnectionError where that is no line."""
    said = b""
    while len(said) < _MAX_LINE and (more := connection.recv(_MAX_LINE)):
        said += more
    if not said.endswith(b"\n"):
        raise ConnectionError("the connection was lost before the file was whole")
    return said.decode(errors="replace").strip()
