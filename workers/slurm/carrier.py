"""Carry a job's files: to its node before it begins, back as it offers them, and its log and its end all the while.

For clusters whose nodes do not see the home. Whoever asks about a replica looks into its directory, as with jobs that
share it; here a thread for each job keeps that as the node has it. What it does may be done again: another control
plane goes on where one was killed.
"""

import base64
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from workers import transfers
from workers.launchers.base import scratch
from workers.launchers.shepherd import write_json
from workers.nodes import NoAddress, Node, NodeAway
from workers.transfers import TransferError

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_PAUSE_S = 2.0
_TRIES = 4
"""Failures in a row after which what is to be carried is given up."""
_LOG = re.compile(r"(node-[1-9][0-9]*/)?log\.txt")


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
        self._complaint = ""
        """Why not all could be kept here at the last look."""
        self._kept: dict[Path, dict[str, Any]] = {}
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="fetch")
        self._fetching: Future[None] | None = None
        """What is offered. Beside the looks: it may take longer than a heart may be silent."""

    def run(self) -> None:
        try:
            self._carry()
        finally:
            self._beside.shutdown(wait=False)

    def _carry(self) -> None:
        failures = 0
        while (url := self._find_url()) is not None:
            if not url:
                time.sleep(_LOOK_S)
                continue
            try:
                with closing(Node(url, self._key)) as node:
                    self._begin(node)
                    while self._look(node, url):
                        if self._fetching is None:
                            failures = 0
                        time.sleep(_LOOK_S)
                return
            except (TransferError, NoAddress) as error:
                # Not to be had by asking again, but a file may have changed while it was read.
                failures += 1
                log.warning("%s: %s", self._directory.name, error)
                if failures >= _TRIES:
                    self._give_up(url, str(error))
                    return
            except (NodeAway, OSError) as error:
                log.info("%s: %s", self._directory.name, error)
            time.sleep(_PAUSE_S)

    def _begin(self, node: Node) -> None:
        if self._ask(node)["has_begun"]:
            return  # somebody else has brought what it reads now
        for each in self._job["sends"]:
            path = Path(each["path"])
            if path.exists():
                found = [] if each["is_empty"] else transfers.entries(path, follow_links=each["follow_links"])
                node.send(path, found, follow_links=each["follow_links"])
        node.ask("POST", "begin")

    def _look(self, node: Node, url: str) -> bool:
        """Bring what is said of the replica up to date; False once it has ended and nothing of it is left to fetch."""
        if self._fetching is not None and self._fetching.done():
            fetched, self._fetching = self._fetching, None
            fetched.result()
        status = self._ask(node)
        # What cannot be kept is told again at the next look. The heart first: whoever is not heard is replaced, and a
        # full disk here is no fault of a replica's.
        wrong: list[OSError] = []
        if status["heart_beats"] != self._beat:
            with _noting(wrong):
                (self._directory / "heartbeat").touch()
                self._beat = status["heart_beats"]
        with _noting(wrong):
            for name in ("agent.json", "why.json", "started.json"):
                if (content := status["reports"].get(name)) is not None:
                    self._keep(self._directory / name, content)
            if status["fault"] is not None:
                scratch(self._directory).mkdir(exist_ok=True)
                self._keep(scratch(self._directory) / "fault.json", status["fault"])
        with _noting(wrong):
            for name, more in status["logs"].items():
                self._append(name, base64.b64decode(more))
        if wrong and str(wrong[0]) != self._complaint:
            log.warning("%s is not kept up to date: %s", self._directory.name, wrong[0])
        self._complaint = str(wrong[0]) if wrong else ""
        if status["offers"] and self._fetching is None:
            self._fetching = self._beside.submit(self._fetch_offers, url, status["offers"])
        if (self._directory / "stop").exists() and not self._is_stopped:
            node.ask("POST", "stop")
            self._is_stopped = True
        if (ended := status["reports"].get("exit.json")) is None:
            return True
        if wrong or status["logs"] or status["offers"]:
            return True  # there may be more of it
        for path in self._job["keeps"]:
            node.fetch(Path(path))
        # Last: whoever sees it takes the job for gone.
        write_json(self._directory / "exit.json", ended)
        with suppress(NodeAway):
            node.ask("POST", "leave")
        return False

    def _ask(self, node: Node) -> Any:
        """How the replica is, and what its logs have that we have not."""
        logs = [self._directory / "log.txt", *self._directory.glob("node-*/log.txt")]
        told = {file.relative_to(self._directory).as_posix(): file.stat().st_size for file in logs if file.exists()}
        return json.loads(node.ask("POST", "status", {"logs": told}))

    def _append(self, name: str, more: bytes) -> None:
        if not _LOG.fullmatch(name):
            raise TransferError(f"{name!r} is no log of a node")
        file = self._directory / name
        file.parent.mkdir(exist_ok=True)
        with file.open("ab") as log_file:
            log_file.write(more)

    def _keep(self, file: Path, content: dict[str, Any]) -> None:
        """Write what a node says, unless it has said it before: each time is a wait for the disk."""
        if self._kept.get(file) != content:
            write_json(file, content)
            self._kept[file] = content

    def _fetch_offers(self, url: str, paths: list[str]) -> None:
        with closing(Node(url, self._key)) as node:
            for path in paths:
                if not any(Path(path).parent == Path(each) for each in self._job["writes"]):
                    raise TransferError(f"{path} is in no directory that the replica may write")
                node.fetch(Path(path))
                node.ask("POST", "taken", {"path": path})

    def _give_up(self, url: str, why: str) -> None:
        """Say why, and have the job end: its agent would wait for the rest."""
        with (self._directory / "log.txt").open("a") as file:
            file.write(f"its files could not be carried: {why}\n")
        write_json(self._directory / "exit.json", {"token": self._job["token"], "code": 1, "end": ""})
        with suppress(NodeAway, TransferError), closing(Node(url, self._key)) as node:
            for act in ("stop", "leave"):
                node.ask("POST", act)


@contextmanager
def _noting(wrong: list[OSError]) -> Iterator[None]:
    """Note an error, so that what comes after it is done all the same."""
    try:
        yield
    except OSError as error:
        wrong.append(error)
