"""What a handler gets to see of a request."""

from dataclasses import dataclass
from email.message import Message
from typing import Self

from rollouts.doors.admission import LARGE_BYTES
from rollouts.doors.compression import MAX_INFLATED_BYTES, inflated
from rollouts.doors.messages import Request

PREFIX = "/atropos/"


@dataclass(frozen=True, slots=True)
class Call:
    """A request under a run's key."""

    key: str
    query: str
    body: bytes
    """Without compression."""
    is_json: bool
    """Whether its content type says so."""

    @classmethod
    def of(cls, request: Request) -> Self:
        """The call of a request. Raises zlib.error and TooLarge for a body that cannot be inflated, Large for one that
        may not be inflated here."""
        most = MAX_INFLATED_BYTES if request.is_large else LARGE_BYTES
        body = inflated(request.header(b"content-encoding"), request.body, most)
        return cls(split_path(request.path)[0], request.query, body, is_json(request.header(b"content-type")))


def split_path(path: str) -> tuple[str, str]:
    """(key, what follows it) of a path under PREFIX."""
    key, _, rest = path.removeprefix(PREFIX).partition("/")
    return key, rest


def is_json(content_type: str) -> bool:
    """Whether FastAPI would parse a body of this type as JSON."""
    if content_type == "application/json":
        return True
    if not content_type:
        return False
    message = Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
