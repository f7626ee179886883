"""Between HTTP bodies and msgspec structs: decode strictly, describe in OpenAPI."""

from typing import Any, TypeVar

import msgspec
from rest_framework import parsers
from rest_framework.request import Request

from trainers.wire import MSGPACK

T = TypeVar("T")


class RawParser(parsers.BaseParser):
    """Leaves the body alone: the view decodes it into its struct, in one pass."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream.read()


def decode(request: Request, kind: type[T]) -> T:
    """The body as ``kind``, from JSON or MessagePack by content type. Raises msgspec.DecodeError or ValidationError."""
    body = request.body
    if request.content_type and request.content_type.split(";")[0].strip() == MSGPACK:
        return msgspec.msgpack.decode(body, type=kind)
    return msgspec.json.decode(body or b"{}", type=kind)


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

    return inline(schema)


def body(kind: Any) -> dict[str, Any]:
    """The ``request`` argument of extend_schema for a struct."""
    return {"application/json": schema_of(kind)}


def answer(kind: Any) -> dict[tuple[int, str], Any]:
    """The ``responses`` argument of extend_schema for a struct."""
    return {(200, "application/json"): schema_of(kind)}


def json(value: Any) -> Any:
    """A struct as what DRF's renderer writes."""
    return msgspec.to_builtins(value)
