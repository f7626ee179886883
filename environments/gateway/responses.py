"""The Responses API of OpenAI, as far as agents of function tools need it: text, reasoning, calls and their results.

A reply is up to three kinds of items: reasoning, then a message, then calls. Items of the assistant that come back in
this order are one reply again, so that a conversation that goes on stays one branch. Nothing is kept between requests.
"""

import itertools
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from environments.gateway import answers
from environments.gateway.wanted import (
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
_ORDER = {"reasoning": 0, "message": 1, "function_call": 2}


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/responses`."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[JsonObject] | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    model: str = "policy"
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None

    @property
    def messages(self) -> list[JsonObject]:
        """What `input` says, as items."""
        return [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input

    def wanted(self) -> Wanted:
        """What is asked for. Raises ValueError, InvalidMessages."""
        for name in ("previous_response_id", "conversation", "prompt"):
            if getattr(self, name):
                raise ValueError(f"{name} is not understood: send the whole conversation as input, each time")
        if self.background:
            raise ValueError("background is not understood: wait for the answer, or stream it")
        return Wanted(
            tools=checked_tools(None if self.tools is None else [_tool(tool) for tool in self.tools]),
            messages=told(self._messages()),
            max_tokens=checked_limit(self.max_output_tokens, "max_output_tokens"),
            stops=checked_stops(None),
            is_streamed=bool(self.stream),
        )

    def _messages(self) -> Iterator[ToldMessage]:
        if self.instructions:
            yield ToldMessage("system", self.instructions)
        reply, last = None, -1
        for item in self.messages:
            kind = str(item.get("type") or "message")
            place = _ORDER.get(kind, -1) if kind != "message" or item.get("role") == "assistant" else -1
            if reply is not None and (place < last or place == last != _ORDER["function_call"]):
                yield reply
                reply = None
            last = place
            if place >= 0:
                reply = _with_item(reply or ToldMessage("assistant"), kind, item)
            elif kind == "message":
                yield ToldMessage(item.get("role") or "", item.get("content"))
            elif kind == "function_call_output":
                yield ToldMessage("tool", item.get("output"), tool_call_id=item.get("call_id"))
            else:
                raise ValueError(f"an item of type {kind!r} is not understood")
        if reply is not None:
            yield reply


def answer(asked: Asked, request: ResponsesRequest) -> JsonObject:
    """A `response`."""
    [reply], [sampled] = asked.replies, asked.completions
    key = uuid.uuid4().hex
    is_cut = sampled.finish_reason == "length"
    status = "incomplete" if is_cut else "completed"
    output: list[JsonObject] = []
    if reply.reasoning_content is not None:
        thought = {"type": "reasoning_text", "text": reply.reasoning_content}
        output.append({"type": "reasoning", "id": f"rs_{key}", "summary": [], "content": [thought], "status": status})
    if reply.content is not None or not reply.tool_calls:
        said: JsonObject = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{key}", "role": "assistant", "content": [said], "status": status}
        output.append(message)
    for number, call in enumerate(reply.tool_calls):
        called = {"call_id": call.id, "name": call.function.name, "arguments": call.function.arguments}
        output.append({"type": "function_call", "id": f"fc_{key}_{number}", "status": "completed"} | called)
    given, tokens = len(asked.prompt_token_ids), len(sampled.token_ids)
    return {
        "id": f"resp_{key}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": request.instructions,
        "metadata": {},
        "model": request.model,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": request.tools or [],
        "top_p": None,
        "usage": {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + tokens,
        },
    }


def events(asked: Asked, request: ResponsesRequest) -> Iterator[bytes]:
    """The same as server-sent events: each item as it begins, what it says, and whole."""
    count = itertools.count()

    def event(kind: str, **fields: Any) -> bytes:
        body = _encode({"type": f"response.{kind}", "sequence_number": next(count)} | fields)
        return f"event: response.{kind}\ndata: ".encode() + body + b"\n\n"

    whole = answer(asked, request)
    begun = whole | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty: JsonObject = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        yield event("output_item.added", output_index=index, item=item | empty | {"status": "in_progress"})
        if item["type"] == "function_call":
            yield event("function_call_arguments.delta", delta=item["arguments"], **at)
            yield event("function_call_arguments.done", name=item["name"], arguments=item["arguments"], **at)
        for number, part in enumerate(item.get("content", ())):
            at["content_index"] = number
            yield event("content_part.added", part=part | {"text": ""}, **at)
            yield event(f"{part['type']}.delta", delta=part["text"], logprobs=[], **at)
            yield event(f"{part['type']}.done", text=part["text"], logprobs=[], **at)
            yield event("content_part.done", part=part, **at)
        yield event("output_item.done", output_index=index, item=item)
    yield event(whole["status"], response=whole)


def refusal(status: int, code: str, message: str) -> JsonObject:
    """An error. In a stream it is the only event, and clients look at its type."""
    event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0}
    return answers.refusal(status, code, message) | event


def _tool(tool: JsonObject) -> JsonObject:
    if tool.get("type") != "function":
        raise ValueError(f"a tool of type {tool.get('type')!r} is not understood: only functions are")
    return function_tool(tool.get("name"), tool.get("description"), tool.get("parameters"))


def _with_item(reply: ToldMessage, kind: str, item: JsonObject) -> ToldMessage:
    if kind == "message":
        reply.content = item.get("content")
    elif kind == "function_call":
        calls = reply.tool_calls or []
        reply.tool_calls = [*calls, function_call(item.get("call_id"), item.get("name"), item.get("arguments"))]
    else:
        thoughts = msgspec.convert([item.get("content") or [], item.get("summary") or []], list[list[dict[str, Any]]])
        reply.reasoning_content = "".join(str(part.get("text", "")) for parts in thoughts for part in parts)
    return reply
