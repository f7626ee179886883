"""What clients get: replies in the forms of the OpenAI API, of vLLM's token route and of Atropos."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from environments.gateway.requests import ChatRequest
from environments.session import Asked
from environments.types import JsonObject, Message

_encode = msgspec.json.Encoder().encode


def chat(asked: Asked, request: ChatRequest) -> JsonObject:
    """A `chat.completion`."""
    return _head("chat.completion", request.model) | {
        "choices": [
            {
                "index": number,
                "message": _message(reply),
                "finish_reason": _finish(asked, number),
                "logprobs": {"content": _logprobs(asked, number)} if request.logprobs else None,
            }
            for number, reply in enumerate(asked.replies)
        ],
        "usage": _usage(asked),
    }


def chat_events(asked: Asked, request: ChatRequest) -> Iterator[bytes]:
    """The same as server-sent events: a role, what was said, the end, for each choice."""
    head = _head("chat.completion.chunk", request.model)

    def event(choices: Sequence[JsonObject], **more: Any) -> bytes:
        return b"data: " + _encode(head | {"choices": choices} | more) + b"\n\n"

    for number, reply in enumerate(asked.replies):
        delta = _message(reply)
        for at, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = at
        said = {"content": _logprobs(asked, number)} if request.logprobs else None
        yield event([{"index": number, "delta": delta, "logprobs": said, "finish_reason": None}])
        yield event([{"index": number, "delta": {}, "finish_reason": _finish(asked, number)}])
    if request.stream_options is not None and request.stream_options.include_usage:
        yield event([], usage=_usage(asked))
    yield b"data: [DONE]\n\n"


def completion(asked: Asked, model: str) -> JsonObject:
    """A `text_completion`."""
    return _head("text_completion", model) | {
        "choices": [
            {
                "index": number,
                "text": each.text,
                "token_ids": each.token_ids,
                "finish_reason": each.finish_reason,
                "logprobs": {
                    "tokens": [f"token_id:{token}" for token in each.token_ids],
                    "token_logprobs": each.logprobs,
                    "top_logprobs": None,
                    "text_offset": [],
                },
            }
            for number, each in enumerate(asked.completions)
        ],
        "usage": _usage(asked),
    }


def tokens(asked: Asked, model: str) -> JsonObject:
    """An answer of vLLM's token route. `token` is what verifiers reads, which vLLM leaves out."""
    return {
        "request_id": f"generate-{uuid.uuid4().hex}",
        "model": model,
        "choices": [
            {
                "index": number,
                "token_ids": each.token_ids,
                "text": each.text,
                "finish_reason": each.finish_reason,
                "stop_reason": each.stopped_by,
                "logprobs": {"content": _logprobs(asked, number)},
            }
            for number, each in enumerate(asked.completions)
        ],
        "usage": _usage(asked),
    }


def atropos(asked: Asked) -> JsonObject:
    """An answer of `/generate`."""
    return {
        "text": [each.text for each in asked.completions],
        "logprobs": [
            [[{token: logprob}] for token, logprob in zip(each.token_ids, each.logprobs, strict=True)]
            for each in asked.completions
        ],
        "finish_reasons": [each.finish_reason for each in asked.completions],
    }


def refusal(status: int, code: str, message: str) -> JsonObject:
    """An error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}


def models(model: str) -> JsonObject:
    """The list of the one model there is."""
    return {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "rollyard"}]}


def _head(kind: str, model: str) -> JsonObject:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _message(reply: Message) -> JsonObject:
    said: JsonObject = {"role": "assistant", "content": None if reply.content is None else reply.text}
    if reply.tool_calls:
        said["tool_calls"] = [msgspec.to_builtins(call) for call in reply.tool_calls]
    if reply.reasoning_content is not None:
        said["reasoning_content"] = reply.reasoning_content
    return said


def _finish(asked: Asked, number: int) -> str:
    ended = asked.completions[number].finish_reason
    return "tool_calls" if ended == "stop" and asked.replies[number].tool_calls else ended


def _logprobs(asked: Asked, number: int) -> list[JsonObject]:
    sampled = asked.completions[number]
    return [
        {"token": f"token_id:{token}", "token_id": token, "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(sampled.token_ids, sampled.logprobs, strict=True)
    ]


def _usage(asked: Asked) -> JsonObject:
    prompt, sampled = len(asked.prompt_token_ids), sum(len(each.token_ids) for each in asked.completions)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
