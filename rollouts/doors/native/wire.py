"""Between HTTP bodies and msgspec structs: decode strictly, describe in OpenAPI."""

from typing import Any, NoReturn, TypeVar

import msgspec
from django.http import HttpResponse, RawPostDataException
from rest_framework import parsers
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request

from rollouts.doors.messages import JSON, Answer
from rollouts.errors import Invalid
from rollouts.storable import data_faults
from trainers.wire import MSGPACK

T = TypeVar("T")


class RawParser(parsers.BaseParser):
    """Leaves the body alone: the view decodes it into its struct, in one pass."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream.read()


def media_type(content_type: str) -> str:
    """The content type without its parameters. Raises UnsupportedMediaType unless it is JSON, MessagePack or empty."""
    found = content_type.split(";")[0].strip().lower()
    if found not in {"", JSON, MSGPACK}:
        raise UnsupportedMediaType(found, f"Send {JSON} or {MSGPACK}, not {found}.")
    return found


def decode(request: Request, kind: type[T], *, repairs_text: bool = False) -> T:
    """The body as ``kind``, from JSON or MessagePack by content type; an empty body is an empty object.

    Text that Postgres cannot hold is refused, unless whoever gets the value repairs it. Of keys that a JSON object has
    twice the last counts. Raises Invalid, RequestDataTooBig, UnsupportedMediaType, msgspec.DecodeError or
    ValidationError.
    """
    found = media_type(request.content_type or "")
    body = read(request)
    if not body:
        value = msgspec.convert({}, kind)
    elif found == MSGPACK:
        value = msgspec.msgpack.decode(body, type=kind, ext_hook=_refuse_extension)
    else:
        value = msgspec.json.decode(body, type=kind)
    if not repairs_text and (fields := dict(data_faults(msgspec.to_builtins(value, builtin_types=[bytes])))):
        raise Invalid("Nothing was done: the body holds what cannot be stored.", fields=fields)
    return value


def _refuse_extension(code: int, _data: memoryview) -> NoReturn:
    raise msgspec.ValidationError(f"Extension {code} of MessagePack is nothing that JSON holds")


def read(request: Request) -> bytes:
    """The body, also one that the check of a session has read; of a form then nothing. The kernel has bounded it."""
    try:
        body: Any = request._request.body
    except RawPostDataException:
        body = request.data
    return body if isinstance(body, bytes) else b""


def response(answer: Answer) -> HttpResponse:
    """An answer that the kernel would send as it is, from a view."""
    kind = answer.content_type or None
    return HttpResponse(answer.body, status=answer.status, content_type=kind, headers=answer.headers)


def schema_of(kind: Any) -> dict[str, Any]:
    """JSON schema of a struct with its references written out, as OpenAPI wants it inside an operation."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, dict):
            if reference := node.get("$ref"):
                return inline(definitions[reference.rsplit("/", 1)[-1]])
            return {key: inline(value) for key, value in node.items()}
        if isinstance(node, list):
            return [inline(item) for item in node]
        return node

    inlined: dict[str, Any] = inline(schema)
    return inlined


def body(kind: Any) -> dict[str, Any]:
    """The ``request`` argument of extend_schema for a struct."""
    return {JSON: schema_of(kind)}


def answer(kind: Any) -> dict[tuple[int, str], Any]:
    """The ``responses`` argument of extend_schema for a struct."""
    return {(200, JSON): schema_of(kind)}


def json(value: Any) -> Any:
    """A struct as what DRF's renderer writes."""
    return msgspec.to_builtins(value)
