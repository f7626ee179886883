"""No sandbox: programs as plain processes, for machines whose every user may have everything."""

import os
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
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if needle in b"\0" + (directory / "environ").read_bytes() + b"\0":
                    found.add(int(directory.name))
        return found
