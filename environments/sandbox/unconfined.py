"""No sandbox: programs as plain processes, for machines whose every user may have everything."""

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

from environments import unconfined
from environments.sandbox import cell, host_cell
from environments.sandbox.call import SandboxCall
from environments.sandbox.cell import Cell
from environments.sandbox.engine import ThreadedEngine
from environments.sandbox.host_cell import HostCell
from environments.sandbox.program import SandboxUnavailable

_TOKEN = "ROLLYARD_TOOL_PROGRAM"
"""Variable by which what a program left running is found."""
_LOOKS_AGAIN_S = (0.001, 0.004, 0.016)
"""Seconds between the looks at processes that show no variables."""


class Unconfined(ThreadedEngine):
    """Limits hold, and nothing else does: a program reaches all that this account reaches. Never for root."""

    name = "unconfined"

    def __init__(self) -> None:
        if not unconfined.is_unconfined():
            raise SandboxUnavailable(f"programs run without a sandbox only where {unconfined.VARIABLE}=1 says so")
        if os.geteuid() == 0:
            raise SandboxUnavailable("root runs no program without a sandbox: start as another account")

    def make(self, call: SandboxCall) -> Cell:
        return _PlainCell(call)


class _PlainCell(HostCell):
    def __init__(self, call: SandboxCall) -> None:
        super().__init__(call)
        self._token = f"{_TOKEN}={uuid.uuid4()}"
        script = f"cd {self.place} && {host_cell.limiting(call)}"
        self.argv = cell.waiting(call.argv, script)
        name, _, value = self._token.partition("=")
        self.environ = {**host_cell.environ_of(self.place), name: value}

    def living(self) -> set[int]:
        needle, found = f"\0{self._token}\0".encode(), super().living()
        unknown = list(Path("/proc").glob("[0-9]*"))
        # Whoever is just becoming another program shows no variables for a moment.
        for pause_s in (0.0, *_LOOKS_AGAIN_S):
            time.sleep(pause_s)
            environs = {place: _environ(place) for place in unknown}
            found |= {int(place.name) for place, told in environs.items() if needle in b"\0" + told + b"\0"}
            unknown = [place for place, told in environs.items() if not told and _is_running(place)]
            if not unknown:
                break
        return found


def _environ(place: Path) -> bytes:
    """The variables of a process; empty where it is gone, or not ours."""
    with suppress(OSError):
        return (place / "environ").read_bytes()
    return b""


def _is_running(place: Path) -> bool:
    """Whether it is a process of this account that has not ended."""
    with suppress(OSError):
        return place.stat().st_uid == os.geteuid() and "\nState:\tZ" not in (place / "status").read_text()
    return False
