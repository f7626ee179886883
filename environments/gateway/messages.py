"""The Messages API of Anthropic, as far as agents of tools of their own need it: text, thinking, calls and results."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from environments.gateway.wanted import (
    InvalidMessages,
    ToldMessage,
    Wanted,
    checked_limit,
    checked_stops,
    checked_tools,
    function_call,
    function_tool,
    told,
)
from environments.session import Asked
from environments.types import JsonObject

_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
}


class MessageOfBlocks(msgspec.Struct):
    """A message as clients send it."""

    role: str
    content: str | list[dict[str, Any]]


class MessagesRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/messages`."""

    messages: list[MessageOfBlocks]
    system: str | list[dict[str, Any]] | None = None
    tools: list[JsonObject] | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    model: str = "policy"

    def wanted(self) -> Wanted:
        """What is asked for. Raises ValueError, InvalidMessages."""
        if self.messages and self.messages[-1].role == "assistant":
            raise InvalidMessages(
                "the last message is the assistant's, and what it begins is not gone on with: end with the user's"
            )
        return Wanted(
            tools=checked_tools(None if self.tools is None else [_tool(tool) for tool in self.tools]),
            messages=told(self._messages()),
            max_tokens=checked_limit(self.max_tokens),
            stops=checked_stops(self.stop_sequences, name="stop_sequences"),
            is_streamed=bool(self.stream),
        )

    def _messages(self) -> Iterator[ToldMessage]:
        if self.system:
            yield ToldMessage("system", self.system)
        for message in self.messages:
            if isinstance(message.content, str):
                yield ToldMessage(message.role, message.content)
            elif message.role == "assistant":
                yield _reply(message.content)
            else:
                yield from _others(message.role, message.content)


def answer(asked: Asked, request: MessagesRequest) -> JsonObject:
    """A `message`."""
    [reply], [sampled] = asked.replies, asked.completions
    key = uuid.uuid4().hex
    content: list[JsonObject] = []
    if reply.reasoning_content is not None:
        # Signed with anything: thinking without a signature is another model's to clients, who quote it to us as text.
        content.append({"type": "thinking", "thinking": reply.reasoning_content, "signature": key})
    if reply.text or not reply.tool_calls:
        content.append({"type": "text", "text": reply.text})
    for call in reply.tool_calls:
        called = {"name": call.function.name, "input": _input(call.function.arguments)}
        content.append({"type": "tool_use", "id": call.id} | called)
    stop = sampled.stopped_by if isinstance(sampled.stopped_by, str) else None
    if sampled.finish_reason == "length":
        reason = "max_tokens"
    elif reply.tool_calls:
        reason = "tool_use"
    else:
        reason = "end_turn" if stop is None else "stop_sequence"
    return {
        "id": f"msg_{key}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": {"input_tokens": len(asked.prompt_token_ids), "output_tokens": len(sampled.token_ids)},
    }


def events(asked: Asked, request: MessagesRequest) -> Iterator[bytes]:
    """The same as server-sent events: the message as it begins, each of its blocks, how it ended."""

    def event(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\ndata: ".encode() + _encode({"type": kind} | fields) + b"\n\n"

    whole = answer(asked, request)
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    usage = whole["usage"]
    unsaid = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage | {"output_tokens": 0}}
    yield event("message_start", message=whole | unsaid)
    for index, block in enumerate(whole["content"]):
        kind = block["type"]
        if kind == "tool_use":
            begun = block | {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": bytes(block["input"]).decode()}
        else:
            begun = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
            delta = {"type": f"{kind}_delta", kind: block[kind]}
        yield event("content_block_start", index=index, content_block=begun)
        yield event("content_block_delta", index=index, delta=delta)
        if kind == "thinking":
            signature = {"type": "signature_delta", "signature": block["signature"]}
            yield event("content_block_delta", index=index, delta=signature)
        yield event("content_block_stop", index=index)
    yield event("message_delta", delta=ended, usage=usage)
    yield event("message_stop")


def refusal(status: int, code: str, message: str) -> JsonObject:
    """An error."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message, "code": code}}


def _tool(tool: JsonObject) -> JsonObject:
    if tool.get("type") not in (None, "custom"):
        raise ValueError(f"a tool of type {tool['type']!r} is not understood: only those with an input_schema are")
    return function_tool(tool.get("name"), tool.get("description"), tool.get("input_schema"))


def _reply(blocks: list[JsonObject]) -> ToldMessage:
    """What the policy said, as it comes back."""
    reply = ToldMessage("assistant", tool_calls=[])
    texts: list[JsonObject] = []
    for block in blocks:
        match block.get("type"):
            case "tool_use":
                given = block.get("input", {})
                arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
                assert reply.tool_calls is not None
                reply.tool_calls.append(function_call(block.get("id"), block.get("name"), arguments))
            case "thinking":
                reply.reasoning_content = (reply.reasoning_content or "") + str(block.get("thinking", ""))
            case "redacted_thinking":
                pass
            case _:
                texts.append(block)
    reply.content = texts or None
    return reply


def _others(role: str, blocks: list[JsonObject]) -> Iterator[ToldMessage]:
    """Results of tools, and what was said between them."""
    texts: list[JsonObject] = []
    for block in blocks:
        if block.get("type") != "tool_result":
            texts.append(block)
            continue
        if texts:
            yield ToldMessage(role, texts)
            texts = []
        yield ToldMessage("tool", block.get("content"), tool_call_id=block.get("tool_use_id"))
    if texts or not blocks:
        yield ToldMessage(role, texts)


def _input(arguments: str) -> msgspec.Raw:
    """The arguments of a call: the object that they spell, or their text if they spell none."""
    written = arguments.encode()
    try:
        _decode_object(written)
    except msgspec.MsgspecError:
        written = _encode(arguments)
    return msgspec.Raw(written)
