"""Who may open a websocket at all, before anything is asked of the database.

A browser sends the cookies of whoever looks at a page along with its socket, whichever page that is; only the origin
says which. So it has to be the address itself that is called: scheme, host and port.
"""

from urllib.parse import urlsplit

from django.conf import settings
from django.http import parse_cookie
from django.http.request import validate_host

from rollouts import guesses
from rollouts.doors.messages import Application, Receive, Scope, Send
from rollouts.errors import TooManyFailures

_PORTS = {"http": 80, "https": 443}
Origin = tuple[str, str, int | None]


def guarded(application: Application) -> Application:
    """The application, for sockets of pages of this very origin, from addresses that need not wait."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if not is_own_page(scope) or _has_to_wait(scope):
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        await application(scope, receive, send)

    return serve


def is_own_page(scope: Scope) -> bool:
    """Whether the page that opens the socket came from where it opens it, or from a trusted origin."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    asked = _origin(headers.get(b"origin", b"").decode("latin-1"))
    # Secure cookies come over HTTPS alone: then pages do too, whatever a proxy speaks with us.
    is_secure = settings.SESSION_COOKIE_SECURE or scope.get("scheme") in {"wss", "https"}
    host = headers.get(b"host", b"").decode("latin-1")
    own = _origin(f"{'https' if is_secure else 'http'}://{host}")
    if asked is None:
        return False
    if asked == own:
        return validate_host(own[1], settings.ALLOWED_HOSTS)
    return asked in [_origin(each) for each in settings.CSRF_TRUSTED_ORIGINS]


def _origin(text: str) -> Origin | None:
    """(scheme, host, port) of an origin; None for what is none."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not host or parts.username is not None:
        return None
    name = f"[{host}]" if ":" in host else host
    return parts.scheme, name, _PORTS[parts.scheme] if port is None else port


def _has_to_wait(scope: Scope) -> bool:
    cookies = dict(scope["headers"]).get(b"cookie", b"").decode("latin-1")
    try:
        guesses.check((scope.get("client") or ("",))[0], parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME, ""))
    except TooManyFailures:
        return True
    return False
