"""The ASGI application: who answers which connection.

/atropos/... ───────────────► rollouts.doors.atropos   the data path, past Django's request machinery
groups in, batches out ─────► rollouts.doors.native    the same kernel
all other HTTP ─────────────► Django, behind it
/ws/... ────────────────────► the consumers of rollouts, for pages of this origin
"""

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import django
from asgiref.sync import sync_to_async
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.core.handlers.asgi import ASGIHandler
from django.db import connection
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from controlplane import rights
from controlplane.home import FOR_RUNS
from controlplane.safety import installation, refuse_unsafe, sheltered


class OneHopHandler(ASGIHandler):
    """Django's handler with all middleware and the view in one thread.

    Every view of ours is synchronous. Django would run the middleware on the event loop and hop to the thread and back
    for each of them, a dozen times a request. The thread also gives its connection to the database back: Django would
    do so once the answer is sent, and not at all when the client is gone by then.
    """

    _middleware_chain: Any

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)
        self._middleware_chain = sync_to_async(partial(_in_thread, self._middleware_chain), thread_sensitive=True)


def _in_thread(respond: Callable[[HttpRequest], HttpResponseBase], request: HttpRequest) -> HttpResponseBase:
    try:
        with counted():
            answer = respond(request)
            if settings.SESSION_COOKIE_NAME in request.COOKIES and _is_signed_in(request):
                guesses.opened(request.COOKIES[settings.SESSION_COOKIE_NAME])
        return answer
    finally:
        connection.close()


def _is_signed_in(request: HttpRequest) -> bool:
    """Whether the session, if the page asked for one, is still somebody's: it outlives account and password."""
    session = getattr(request, "session", None)
    return session is not None and session.accessed and SESSION_KEY in session and get_user(request).is_authenticated


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
judged = installation(os.environ, home=settings.HOME.path, secret_key=settings.SECRET_KEY, https=settings.HTTPS)
refuse_unsafe(judged)
django.setup(set_prefix=False)
rights.refuse_trust(connection)
pages: Any = OneHopHandler()

# These import models, which exist only after the lines above have loaded the applications.
from django.contrib.auth.middleware import get_user  # noqa: E402

from controlplane.web.pacing import paced  # noqa: E402
from controlplane.web.senders import plausible  # noqa: E402
from controlplane.web.sockets import guarded  # noqa: E402
from rollouts import guesses  # noqa: E402
from rollouts.doors import kernel  # noqa: E402
from rollouts.doors.atropos.app import application as atropos  # noqa: E402
from rollouts.doors.atropos.call import PREFIX as ATROPOS_PREFIX  # noqa: E402
from rollouts.doors.native.hot import NativeDoor  # noqa: E402
from rollouts.doors.threads import counted  # noqa: E402
from rollouts.routing import websocket_urlpatterns  # noqa: E402

# Django would import the pages at the first request, which takes a third of a second on the event loop of everybody.
import_module(settings.ROOT_URLCONF)
native = kernel.application(NativeDoor(), otherwise=pages)
sockets = guarded(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))


async def http(scope: Any, receive: Any, send: Any) -> None:
    """Answer one HTTP request."""
    if scope.get("state", {}).get(FOR_RUNS) and not scope["path"].startswith("/api/"):
        # The code of runs has no business with pages and passwords.
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        return
    await (atropos if scope["path"].startswith(ATROPOS_PREFIX) else native)(scope, receive, send)


async def websocket(scope: Any, receive: Any, send: Any) -> None:
    """Serve one socket; none for the code of runs."""
    if scope.get("state", {}).get(FOR_RUNS):
        await send({"type": "websocket.close"})
        return
    await sockets(scope, receive, send)


application = sheltered(
    ProtocolTypeRouter({"http": plausible(paced(http)), "websocket": plausible(paced(websocket))}), judged
)
