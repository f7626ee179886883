"""What passes between the kernel and a door: requests, answers, and answers that are not there yet."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from rollouts.services.batches.forming import Outgoing

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """A request, whose body is empty as long as it was not read."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    """By their names in lower case."""
    body: bytes = b""
    address: str = ""
    """Of the sender, as the server says; empty over a unix socket."""
    is_large: bool = False
    """Whether it is answered in the one thread for what takes much memory."""

    @classmethod
    def of(cls, scope: Scope) -> Self:
        """The request of an ASGI connection."""
        query = scope.get("query_string", b"").decode("latin-1")
        address = (scope.get("client") or ("",))[0]
        return cls(scope["method"], scope["path"], query, dict(scope["headers"]), address=address)

    def header(self, name: bytes) -> str:
        """A header's text; empty when it is not there."""
        return self.headers.get(name, b"").decode("latin-1")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, before what its door adds for transport."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    """Empty when there is no body to have one."""
    headers: dict[str, str] = field(default_factory=dict)
    outgoing: Outgoing | None = None
    """The batch that is the body."""


class Later(NamedTuple):
    """An answer that is not there yet."""

    look: Callable[[], Answer | None]
    """Called in a thread, again and again."""
    deadline: float
    """Monotonic."""
    otherwise: Answer
    """What is answered when the deadline passed."""


class Elsewhere(Exception):
    """The request is for the application behind the door, as far as it was read."""


class Disconnected(Exception):
    """The client went away before its request was complete."""
