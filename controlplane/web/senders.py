"""What a connection says of its sender counts as far as it can be true, before anybody else looks at it."""

import re

from django.conf import settings
from django.http import parse_cookie

from rollouts.doors.messages import Application, Receive, Scope, Send

_SESSION_KEY = re.compile(r"[a-z0-9]{8,40}")


def plausible(application: Application) -> Application:
    """The application, for HTTP or for sockets, which finds no session that cannot be one."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, _cookies(value) if name == b"cookie" else value) for name, value in scope["headers"]]
        await application({**scope, "headers": headers}, receive, send)

    return serve


def _cookies(header: bytes) -> bytes:
    """The cookies without a session whose key Django cannot have made: one with a NUL breaks every query."""
    pieces = header.decode("latin-1").split(";")
    return ";".join(each for each in pieces if not _is_no_session(each)).encode("latin-1")


def _is_no_session(cookie: str) -> bool:
    key = parse_cookie(cookie).get(settings.SESSION_COOKIE_NAME)
    return key is not None and not _SESSION_KEY.fullmatch(key)
