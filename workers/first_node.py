"""What the agents of a job's other nodes have to do with the one of its first: files, a log, and when to stop."""

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from workers.depot import Depot, tail
from workers.launchers import accounts
from workers.nodes import Node

_POLL_S = 0.5
_FOUND_S = 120.0
"""For which the first node may take to say where it listens."""
_CALL_S = 60.0


class FirstNode:
    """The agent of the first node. Not thread-safe."""

    def __init__(self, url: str, key: str, node: int) -> None:
        """`node`: which we are."""
        self.url = url
        self._node = Node(url, key)
        self._number = node
        self._told = 0

    async def bring(self, depot: Depot) -> None:
        """Fetch what was brought to the first node, as it comes. For as long as that waits for more: it gives up where
        nothing comes, and is away then. Raises NodeAway, TransferError."""
        here = set[str]()
        while True:
            brought = json.loads(await asyncio.to_thread(self._node.ask, "GET", "brought"))
            for path in filter(lambda path: path not in here, brought["paths"]):
                place = depot.place(Path(path))
                await asyncio.to_thread(self._node.fetch, Path(path), place)
                await asyncio.to_thread(accounts.open_to, accounts.account_of_runs(), [place])
                here.add(path)
            if brought["is_all"]:
                return
            await asyncio.sleep(_POLL_S)

    def report(self, log: Path, code: int | None = None) -> bool:
        """Tell it what has been written into our log, and how our command has ended, if it has; returns whether the
        replica is to end. Raises NodeAway."""
        more = tail(log, self._told)
        told = {"node": self._number, "offset": self._told} | ({} if code is None else {"code": code})
        answer: Any = json.loads(self._node.ask("POST", "report", more, **told))
        self._told += len(more)
        return bool(answer["is_stopped"])


def tell(words: str) -> None:
    """Say something in the comment of our job, such as where we listen. Who may write there is the job's account."""
    job = os.environ["SLURM_JOB_ID"]
    subprocess.run(["scontrol", "update", f"JobId={job}", f"Comment={words}"], check=True, timeout=_CALL_S)


def find(key: str, node: int) -> FirstNode:
    """Wait until the first node has said where it listens. Raises TimeoutError with what it has said instead."""
    job, said = os.environ["SLURM_JOB_ID"], ""
    give_up_at = time.monotonic() + _FOUND_S
    while time.monotonic() < give_up_at:
        asked = ["squeue", "--noheader", f"--job={job}", "--format=%k"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_CALL_S, check=False)
        said = done.stdout.strip() or done.stderr.strip()
        if said.startswith("http"):
            return FirstNode(said, key, node)
        time.sleep(_POLL_S)
    raise TimeoutError(f"the first node has not said within {_FOUND_S:.0f} s where it listens: {said}")
