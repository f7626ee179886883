"""Read the body of a request: of a bounded size, and not all of a large one before it is asked who sends it."""

from collections.abc import Awaitable, Callable

from django.conf import settings

from rollouts.doors.admission import Ticket
from rollouts.doors.messages import Disconnected, Message, Receive, Request
from rollouts.errors import TooLarge

UNASKED_BYTES = 256 * 1024
"""So much is read of a body before it is asked who sends it: a hop to a thread of its own would cost more."""
FORM_BYTES = 64 * 1024
"""A form is parsed before it is asked who sends it, at many times its size in memory. No page has a larger one."""
_FORMS = (b"application/x-www-form-urlencoded", b"multipart/form-data")


class Body:
    """The body of one request, which another application can receive again from its beginning."""

    def __init__(self, request: Request, receive: Receive) -> None:
        self._declared = request.headers.get(b"content-length", b"")
        self._receive = receive
        is_form = request.headers.get(b"content-type", b"").strip().lower().startswith(_FORMS)
        self._limit: int = FORM_BYTES if is_form else settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        self._left = self._limit
        self._seen: list[Message] = []

    async def read(self, ticket: Ticket, check: Callable[[], Awaitable[object]]) -> bytes:
        """The body as it was sent. Raises TooLarge before more is read than may be, and Disconnected.

        When it turns out to be large, ``check`` is awaited once: it raises what those get who may not send it.
        """
        size, is_known = 0, False
        while True:
            message = await self._next()
            if message["type"] == "http.disconnect":
                raise Disconnected
            self._seen.append(message)
            size += len(message.get("body", b""))
            ticket.grow(len(message.get("body", b"")))
            if not message.get("more_body", False):
                break
            if size > UNASKED_BYTES and not is_known:
                await check()
                is_known = True
        if len(self._seen) > 1:
            pieces = [message.get("body", b"") for message in self._seen]
            self._seen = [{"type": "http.request", "body": b"".join(pieces), "more_body": False}]
        body: bytes = self._seen[0].get("body", b"")
        return body

    async def receive(self) -> Message:
        """What was received before, then what follows; bounded too."""
        return self._seen.pop(0) if self._seen else await self._next()

    async def _next(self) -> Message:
        declared = self._declared
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0 or (declared.isdigit() and (len(declared) > 18 or int(declared) > self._limit)):
            raise TooLarge
        return message
