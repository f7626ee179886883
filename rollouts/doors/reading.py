"""Read the body of a request: of a bounded size, and not all of a large one before it is asked who sends it."""

from collections.abc import Awaitable, Callable
from io import BytesIO

from django.conf import settings

from rollouts.doors.admission import Ticket
from rollouts.doors.messages import Disconnected, Message, Receive, Request
from rollouts.errors import Malformed, TooLarge

UNASKED_BYTES = 256 * 1024
"""So much is read of a body before it is asked who sends it: a hop to a thread of its own would cost more."""
STRANGERS_FORM_BYTES = 64 * 1024
"""A form is parsed at many times its size in memory; a larger one is not before it is asked who sends it."""
FORM_BYTES = 2**20
"""No page has a larger one: a correction and the thoughts before it, of which each byte may be sent as three."""
_FORM_TOO_LARGE = f"A form may have at most {FORM_BYTES // 1024} KiB. Nothing was stored; go back, and shorten it."
_LARGE_BODIES = ("/api/", "/atropos/")
_FORMS = (b"application/x-www-form-urlencoded", b"multipart/form-data")


class Body:
    """The body of one request, which another application can receive again from its beginning."""

    def __init__(self, request: Request, receive: Receive) -> None:
        self._declared = request.headers.get(b"content-length", b"")
        self._receive = receive
        is_form = request.headers.get(b"content-type", b"").strip().lower().startswith(_FORMS)
        is_small = is_form or not request.path.startswith(_LARGE_BODIES)
        most: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        self._limit = min(FORM_BYTES, most) if is_small else most
        self._left = self._limit
        self._is_small = is_small
        self._seen: list[Message] = []
        self._received = 0
        self._ask: Callable[[], Awaitable[object]] | None = None
        self.refusal: Exception | None = None
        """What was raised instead of reading on."""

    def ask_first(self, check: Callable[[], Awaitable[object]]) -> None:
        """When it turns out to be large, ``check`` is awaited once: it raises what those get who may not send it."""
        self._ask = check

    async def read(self, ticket: Ticket) -> bytes:
        """The body as it was sent. Raises TooLarge before more is read than may be, and Disconnected."""
        whole = BytesIO()  # unlike a list of pieces that are joined, it holds a body once
        more_body = True
        while more_body:
            message = await self._next()
            if message["type"] == "http.disconnect":
                raise Disconnected
            piece: bytes = message.get("body", b"")
            ticket.grow(len(piece))
            more_body = message.get("more_body", False)
            if more_body or whole.tell():
                whole.write(piece)
        body = whole.getvalue() if whole.tell() else piece
        self._seen = [{"type": "http.request", "body": body, "more_body": False}]
        return body

    async def receive(self) -> Message:
        """What was received before, then what follows; bounded too."""
        return self._seen.pop(0) if self._seen else await self._next()

    async def _next(self) -> Message:
        declared = self._declared
        if declared and not declared.isdigit():
            self.refusal = Malformed("The Content-Length is no number.")
            raise self.refusal
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0 or len(declared) > 18 or int(declared or b"0") > self._limit:
            self.refusal = TooLarge(_FORM_TOO_LARGE if self._is_small else "")
            raise self.refusal
        self._received += len(message.get("body", b""))
        if self._ask is not None and self._is_to_be_asked(message):
            ask, self._ask = self._ask, None
            try:
                await ask()
            except Exception as error:
                self.refusal = error
                raise
        return message

    def _is_to_be_asked(self, message: Message) -> bool:
        if self._is_small:
            return max(self._received, int(self._declared or b"0")) > STRANGERS_FORM_BYTES
        return self._received > UNASKED_BYTES and bool(message.get("more_body", False))
