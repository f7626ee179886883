"""One HTTP connection: uvicorn's, with an end to what a client could draw out.

    connected ──► head, 30 s and 256 KiB ──► body, 300 s ──► answered, uvicorn's own patience ──► head ...
                                               └─► answered before it is there: 256 KiB more are read, then no more

What a body may hold is for the applications to say.
"""

import asyncio
from typing import Any
from weakref import WeakSet

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_DEADLINE_S = 30.0
LINGER_S = 1.0
"""Between an answer that came before the end of a large body and the end of its connection: to read the answer in."""
MAX_EXCESS_BYTES = 256 * 1024
"""Of a body that was answered already. What is on its way is thrown away, more costs us and its sender the reading."""
BODY_DEADLINE_S = 300.0
MAX_HEAD_BYTES = 256 * 1024
"""The parser puts a header together piece by piece, at a cost that grows with the square of its length."""


class Connection(HttpToolsProtocol):
    """What `uvicorn.Config(http=...)` takes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes: int | None = 0
        """Received of a head that is not complete, in whole reads; None between two heads."""
        self._excess_bytes = 0
        self._requests: WeakSet[RequestResponseCycle] = WeakSet()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._expect(HEAD_DEADLINE_S)

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._expect(HEAD_DEADLINE_S)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head_bytes = None
        self._excess_bytes = 0
        self._expect(BODY_DEADLINE_S)
        if self.cycle is not None:
            self._requests.add(self.cycle)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.cycle is None or not self.cycle.response_complete:
            return
        self._excess_bytes += len(body)
        if self._excess_bytes > MAX_EXCESS_BYTES and not self.transport.is_closing():
            self.flow.pause_reading()
            self._expect(LINGER_S)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._expect(None)

    def handle_websocket_upgrade(self) -> None:
        self._expect(None)
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._expect(None)
        # uvicorn tells the last request only. The others would go on to write to nobody, each with an error in the log.
        for request in self._requests:
            request.disconnected = True
            request.message_event.set()

    def _expect(self, within_s: float | None) -> None:
        """The next part of a request has to be complete by then."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if within_s is None else self.loop.call_later(within_s, self._give_up)

    def _give_up(self) -> None:
        self.transport.close()
