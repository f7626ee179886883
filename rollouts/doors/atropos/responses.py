"""Requests and responses as values, and the refusals that code below the routes raises."""

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Request:
    """What a handler gets to see of a request."""

    key: str
    """The run's, out of the path."""
    query: str
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer, before compression and headers of transport."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


def ok(content: Any) -> Response:
    """200 with content that msgspec can encode."""
    return Response(_encoder.encode(content))


def text(content: str, status: int = 200) -> Response:
    return Response(content.encode(), status, TEXT)


def problem(status: int, detail: Any, headers: dict[str, str] | None = None) -> Response:
    """A refusal in FastAPI's shape. ``detail`` may hold what came in, so also what UTF-8 cannot encode."""
    content = {"detail": detail}
    try:
        body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        body = json.dumps(content, separators=(",", ":")).encode()
    return Response(body, status, JSON, headers or {})


def try_again(detail: str) -> Response:
    """503: Atropos' clients repeat what is answered with 5xx, and drop what is answered with 4xx."""
    return problem(503, detail, {"Retry-After": "1"})


class Refused(Exception):
    """The request gets this answer, and nothing was done."""

    def __init__(self, response: Response) -> None:
        self.response = response
        super().__init__(f"{response.status} {response.body[:200]!r}")


def invalid(faults: list[dict[str, Any]]) -> Refused:
    """422 with faults in pydantic's shape: type, loc, msg, input."""
    return Refused(problem(422, faults))


def fault(kind: str, loc: tuple[str | int, ...], message: str, value: Any = None) -> dict[str, Any]:
    """One entry of a 422."""
    return {"type": kind, "loc": ["body", *loc], "msg": message, "input": value}
