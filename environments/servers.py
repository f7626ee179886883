"""Ask a server that may be anything: it answers within the deadline and in so many bytes, however they trickle, or not.

By aiohttp, not httpx: a request costs a third of the time of a core, and at a gateway that is most of it.
"""

import asyncio
import socket
import sys
from collections.abc import Mapping
from typing import NamedTuple

import aiohttp

from environments.client.address import address

_CONNECT_S = 10.0
"""A dead address shows sooner than a slow answer."""
_MAX_CONNECTIONS = 1_000
_KEPT_S = 4.0
"""For which an idle connection is kept; uvicorn, and so vLLM, hangs up after five."""
_PROBE_S = 10
"""After which an end that says nothing is asked whether it is there."""
_SILENT_S = 60
"""For which it may answer neither that nor what was sent: a machine without power or network says nothing."""


class AnswerTooLarge(Exception):
    """An answer has more bytes than were asked for."""


class ServerLost(Exception):
    """The server could not be reached, or hung up, or does not speak HTTP."""


class ServerAnswer(NamedTuple):
    """Of a server, whole."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The start of the body, to be shown."""
        return self.body[:2000].decode(errors="replace")[:500]


class Server:
    """The server at an address. Belongs to one event loop; safe for many requests at once."""

    def __init__(self, base_url: str, *, api_key: str | None = None, keeps_connections: bool = True) -> None:
        """`base_url` ends in `/v1` or not, or is a socket's (`unix://`). Without connections that are kept, no request
        finds one on which the server has hung up meanwhile."""
        root, self._socket = address(base_url)
        self._root = root.removesuffix("/v1")
        self._headers = {
            "Accept-Encoding": "identity",  # an answer takes as many bytes here as on its way
            **({"Authorization": f"Bearer {api_key}"} if api_key else {}),
        }
        self._keeps_connections = keeps_connections
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        deadline_s: float,
        most_bytes: int,
        body: bytes | None = None,
        query: Mapping[str, str] | None = None,
    ) -> ServerAnswer:
        """Send a request, whose body is JSON. Raises TimeoutError, AnswerTooLarge, ServerLost."""
        if self._session is None:
            self._session = self._open()
        answered = bytearray()
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._session.request(
                    method,
                    self._root + path,
                    params=query,
                    data=body,
                    headers={"Content-Type": "application/json"} if body is not None else None,
                    allow_redirects=False,
                ) as response,
            ):
                async for chunk in response.content.iter_any():
                    answered += chunk
                    if len(answered) > most_bytes:
                        raise AnswerTooLarge(f"The answer from {path} has more than {most_bytes} bytes.")
        except aiohttp.ClientError as error:
            raise ServerLost(f"{path}: {type(error).__name__}: {error}") from error
        return ServerAnswer(response.status, bytes(answered))

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        keeping = {"keepalive_timeout": _KEPT_S} if self._keeps_connections else {"force_close": True}
        return aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._socket, limit=_MAX_CONNECTIONS, **keeping)
            if self._socket
            else aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, socket_factory=_line_to, **keeping),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # a packed kilobyte may stand for gigabytes
        )


def notice_silence(line: socket.socket) -> None:
    """Have a TCP connection end when nothing is heard from its other machine; on Linux alone."""
    if sys.platform != "linux":
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    # The end of both: of probes, and of what was sent, which the kernel would repeat for a quarter of an hour.
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_S * 1000)


def _line_to(address: aiohttp.AddrInfoType) -> socket.socket:
    """Answers may take many minutes, so only this tells a slow server from a machine that is gone."""
    family, kind, protocol, *_ = address
    line = socket.socket(family, kind, protocol)
    notice_silence(line)
    return line
