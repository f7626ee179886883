"""Addresses of HTTP servers that listen on a socket of this machine instead of a port: `unix:///path/of/socket`.

Such a socket is reached by whoever may enter its directory. The code of a run may, and no port is in its network.
"""

from typing import NamedTuple

SCHEME = "unix://"


class ServerAddress(NamedTuple):
    """Where to send requests."""

    base_url: str
    socket: str | None
    """Path of the socket to connect to; None: connect to the host and port of the URL."""


def address(url: str) -> ServerAddress:
    """Read an address, either `unix://` and a path or any other URL."""
    if url.startswith(SCHEME):
        return ServerAddress("http://localhost", url.removeprefix(SCHEME))
    return ServerAddress(url.rstrip("/"), None)
