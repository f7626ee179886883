"""Carry a job's files: to its node before it begins, back as it offers them, and its log and its end all the while.

For clusters whose nodes do not see the home. Whoever asks about a replica looks into its directory, as with jobs that
share it; here a thread for each job keeps that as the node has it. What it does may be done again: another control
plane goes on where one was killed.
"""

import base64
import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from workers import transfers
from workers.depot import PREFIX
from workers.launchers.base import scratch
from workers.launchers.shepherd import write_json
from workers.transfers import Arrival, Listed, TransferError

log = logging.getLogger(__name__)

_CALL_S = 60.0
_LOOK_S = 0.5
_PAUSE_S = 2.0
_TRIES = 4


class NodeAway(Exception):
    """An agent did not answer, or not as it should."""


class Node:
    """The agent of a job. Not thread-safe."""

    def __init__(self, url: str, key: str) -> None:
        there = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            there.hostname or "", there.port, timeout=_CALL_S, blocksize=2**20
        )
        self._headers = {"Authorization": f"Bearer {key}"}

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, route: str, body: Any = None, **query: object) -> bytes:
        """Raises NodeAway, and TransferError for what the agent refuses."""
        path = f"{PREFIX}{route}?{urlencode(query, quote_via=quote)}"
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            self._connection.request(method, path, body=content, headers=self._headers)
            answer = self._connection.getresponse()
            given = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise NodeAway(f"{type(error).__name__}: {error}") from None
        if answer.status == 200:
            return given
        told = given[:300].decode(errors="replace").strip()
        raise TransferError(told) if answer.status in (422, 507) else NodeAway(f"{answer.status}: {told}")

    def send(self, path: Path, found: Iterable[Listed], *, follow_links: bool = False) -> None:
        """Bring a directory or a file to the node, where it has its name once all of it is there."""
        found, name = list(found), str(path)
        for entry in found:
            with transfers.opened(path, entry.name, follow_links=follow_links) as file:
                for offset in range(0, entry.size, transfers.PIECE_BYTES):
                    piece = file.read(transfers.PIECE_BYTES)
                    self.ask("PUT", "file", piece, path=name, name=entry.name, offset=offset)
        self.ask("POST", "arrived", {"path": name, "entries": [list(entry) for entry in found]})

    def fetch(self, path: Path) -> None:
        """Bring a directory or a file here, under its own name, unless it is here already."""
        wanted = [Listed(*entry) for entry in json.loads(self.ask("GET", "entries", path=str(path)))]
        if all(transfers.has(path, entry) for entry in wanted):  # also where there is nothing
            return
        incoming = Arrival(path)
        for entry in wanted:
            offset = incoming.received(entry.name)
            while offset < entry.size:
                piece = self.ask("GET", "file", path=str(path), name=entry.name, offset=offset)
                if not piece:
                    raise TransferError(f"{entry.name} has become shorter")
                incoming.write(entry.name, offset, piece)
                offset += len(piece)
        incoming.finish(wanted)


class Carrier(threading.Thread):
    """What is carried for one job, from its start to its end."""

    def __init__(self, directory: Path, key: str, find_url: Callable[[], str | None]) -> None:
        """`find_url`: where the job's agent listens; empty: not yet; None: the job has ended."""
        super().__init__(name=f"carry-{directory.name}", daemon=True)
        self._directory = directory
        self._key = key
        self._find_url = find_url
        self._job: dict[str, Any] = json.loads((directory / "job.json").read_text())
        self._is_stopped = False
        self._beat: int | bool = False
        self._kept: dict[Path, dict[str, Any]] = {}

    def run(self) -> None:
        failures = 0
        while (url := self._find_url()) is not None:
            if not url:
                time.sleep(_LOOK_S)
                continue
            try:
                with closing(Node(url, self._key)) as node:
                    self._begin(node)
                    while self._look(node):
                        time.sleep(_LOOK_S)
                return
            except TransferError as error:
                # Not to be had by asking again, but a file may have changed while it was read.
                failures += 1
                log.warning("%s: %s", self._directory.name, error)
                if failures >= _TRIES:
                    self._give_up(str(error))
                    return
            except (NodeAway, OSError) as error:
                log.info("%s: %s", self._directory.name, error)
            time.sleep(_PAUSE_S)

    def _begin(self, node: Node) -> None:
        if json.loads(node.ask("GET", "status", log=0))["has_begun"]:
            return  # somebody else has brought what it reads now
        for each in self._job["sends"]:
            path = Path(each["path"])
            if path.exists():
                found = [] if each["is_empty"] else transfers.entries(path, follow_links=each["follow_links"])
                node.send(path, found, follow_links=each["follow_links"])
        node.ask("POST", "begin")

    def _look(self, node: Node) -> bool:
        """Bring what is said of the replica up to date; False once it has ended and nothing of it is left to fetch."""
        log_file = self._directory / "log.txt"
        told = log_file.stat().st_size if log_file.exists() else 0
        status = json.loads(node.ask("GET", "status", log=told))
        with log_file.open("ab") as file:
            file.write(base64.b64decode(status["log"]))
        for name in ("agent.json", "why.json", "started.json"):
            if (content := status["reports"].get(name)) is not None:
                self._keep(self._directory / name, content)
        if status["heart_beats"] != self._beat:
            self._beat = status["heart_beats"]
            (self._directory / "heartbeat").touch()
        if status["fault"] is not None:
            scratch(self._directory).mkdir(exist_ok=True)
            self._keep(scratch(self._directory) / "fault.json", status["fault"])
        for path in status["offers"]:
            self._fetch_offer(node, path)
        if (self._directory / "stop").exists() and not self._is_stopped:
            node.ask("POST", "stop")
            self._is_stopped = True
        if (ended := status["reports"].get("exit.json")) is None:
            return True
        if len(status["log"]) > 0 or status["offers"]:
            return True  # there may be more of it
        for path in self._job["keeps"]:
            node.fetch(Path(path))
        # Last: whoever sees it takes the job for gone.
        write_json(self._directory / "exit.json", ended)
        with suppress(NodeAway):
            node.ask("POST", "leave")
        return False

    def _keep(self, file: Path, content: dict[str, Any]) -> None:
        """Write what a node says, unless it has said it before: each time is a wait for the disk."""
        if self._kept.get(file) != content:
            write_json(file, content)
            self._kept[file] = content

    def _fetch_offer(self, node: Node, path: str) -> None:
        if not any(Path(path).parent == Path(each) for each in self._job["writes"]):
            raise TransferError(f"{path} is in no directory that the replica may write")
        node.fetch(Path(path))
        node.ask("POST", "taken", {"path": path})

    def _give_up(self, why: str) -> None:
        with (self._directory / "log.txt").open("a") as file:
            file.write(f"its files could not be carried: {why}\n")
        write_json(self._directory / "exit.json", {"token": self._job["token"], "code": 1, "end": ""})
