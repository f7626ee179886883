"""The APIs in which clients ask for the next reply of a conversation."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from environments.gateway import answers, messages, responses
from environments.gateway.requests import ChatRequest
from environments.session import Asked
from environments.types import JsonObject

Refusal = Callable[[int, str, str], JsonObject]
"""Makes the body of an error: of its status, a word for programs and a sentence for people."""


class Dialect(NamedTuple):
    """How one API writes what it asks for, its answers, whole and as events, and its errors."""

    decoder: msgspec.json.Decoder[Any]
    """Of requests, which have `messages` and tell by `wanted` what they come to."""
    whole: Callable[[Asked, Any], JsonObject]
    events: Callable[[Asked, Any], Iterator[bytes]]
    refusal: Refusal


CHAT = Dialect(msgspec.json.Decoder(ChatRequest), answers.chat, answers.chat_events, answers.refusal)
RESPONSES = Dialect(
    msgspec.json.Decoder(responses.ResponsesRequest), responses.answer, responses.events, responses.refusal
)
MESSAGES = Dialect(msgspec.json.Decoder(messages.MessagesRequest), messages.answer, messages.events, messages.refusal)
