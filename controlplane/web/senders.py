"""What a connection says of its sender counts as far as it can be true, before anybody else looks at it.

An address becomes a key in memory and a value in the store, the cookie of a session a value in the store. What is none
would fill the one and break the other, and its sender may have written it.
"""

import ipaddress
import re
from functools import lru_cache

from django.conf import settings
from django.http import parse_cookie

from controlplane.home import FOR_RUNS
from rollouts.doors.messages import Application, Receive, Scope, Send

NO_ADDRESS = "::"
"""Of all whose proxy says something else where their address belongs: together they are one sender."""
_SESSION_KEY = re.compile(r"[a-z0-9]{8,40}")


def plausible(application: Application) -> Application:
    """The application, for HTTP or for sockets, which finds no address and no session that cannot be one."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        scope = {**scope, "client": _client(scope)}
        if any(name == b"cookie" for name, _ in scope["headers"]):  # those of programs have none
            pairs = scope["headers"]
            scope["headers"] = [(name, _cookies(value) if name == b"cookie" else value) for name, value in pairs]
        await application(scope, receive, send)

    return serve


def _client(scope: Scope) -> tuple[str, int] | None:
    if not scope.get("client") or scope.get("state", {}).get(FOR_RUNS):  # there is no proxy before the code of runs
        return None
    claimed, port = scope["client"]
    return _address(claimed), port


@lru_cache(maxsize=1024)
def _address(claimed: str) -> str:
    try:
        address = ipaddress.ip_address(claimed.partition("%")[0])
    except ValueError:
        return NO_ADDRESS
    # A socket for both kinds writes an IPv4 address as one of IPv6, where all of them would be of one network.
    return str(getattr(address, "ipv4_mapped", None) or address)


def _cookies(header: bytes) -> bytes:
    """The cookies without a session whose key Django cannot have made: one with a NUL breaks every query."""
    pieces = header.decode("latin-1").split(";")
    return ";".join(each for each in pieces if not _is_no_session(each)).encode("latin-1")


def _is_no_session(cookie: str) -> bool:
    key = parse_cookie(cookie).get(settings.SESSION_COOKIE_NAME)
    return key is not None and not _SESSION_KEY.fullmatch(key)
