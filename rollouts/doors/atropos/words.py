"""Answers in the words of Atropos' own server: FastAPI's."""

import json
from typing import Any

import msgspec

from rollouts.doors.messages import JSON, Answer
from rollouts.errors import Fault

TEXT = "text/plain; charset=utf-8"

_encoder = msgspec.json.Encoder()


def ok(content: Any) -> Answer:
    """200 with content that msgspec can encode."""
    return Answer(_encoder.encode(content))


def text(content: str, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    return Answer(content.encode(), status, TEXT, headers or {})


def problem(status: int, detail: Any, headers: dict[str, str] | None = None) -> Answer:
    """A refusal in FastAPI's shape. ``detail`` may hold what came in, so also what UTF-8 cannot encode."""
    content = {"detail": detail}
    try:
        body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        body = json.dumps(content, separators=(",", ":")).encode()
    return Answer(body, status, JSON, headers or {})


def try_again(detail: str) -> Answer:
    """503: Atropos' clients repeat what is answered with 5xx, and drop what is answered with 4xx."""
    return problem(503, detail, {"Retry-After": "1"})


def worded(fault: Fault) -> dict[str, Any]:
    """One entry of a 422, in pydantic's shape."""
    entry = {"type": fault.code, "loc": ["body", *fault.loc], "msg": fault.message, "input": fault.value}
    return entry if fault.context is None else {**entry, "ctx": fault.context}
