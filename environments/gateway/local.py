"""The gateway of one event loop: its port is opened when the first program needs it."""

import asyncio
import contextlib
from pathlib import Path

from environments.env import SessionAddress
from environments.gateway.app import make_app
from environments.gateway.serving import serving
from environments.gateway.sessions import OpenSessions
from environments.session import Session


class LocalGateway:
    """Gives sessions an address. `aclose` closes the port."""

    def __init__(self, path: Path | None = None) -> None:
        """`path`: of a socket that has the same behind it, for sandboxes; it is made when the port is opened."""
        self.path = path
        self.sessions = OpenSessions()
        self._open = contextlib.AsyncExitStack()
        self._lock = asyncio.Lock()
        self._url = ""

    async def admit(self, session: Session) -> SessionAddress:
        """Serve a session until it ends; returns where."""
        async with self._lock:
            if not self._url:
                self._url = await self._open.enter_async_context(serving(make_app(self.sessions), self.path))
        key = self.sessions.open(session)
        return SessionAddress(f"{self._url}/s/{key}/v1", key)

    def dismiss(self, address: SessionAddress) -> None:
        """Serve what has this address no longer."""
        self.sessions.close(address.api_key)

    async def aclose(self) -> None:
        """Close the port."""
        await self._open.aclose()
