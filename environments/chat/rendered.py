"""Chat formats that `renderers` knows token by token: what was sampled is never rendered again.

Proven before it is used: a renderer has to give the very tokens of the model's own chat template for conversations with
a system prompt, tools, a call and its result.
"""

import asyncio
import json
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from environments.chat.tokenizer import ChatTokenizer
from environments.errors import ContextFull, PolicyRefused, words_of
from environments.types import FunctionCall, JsonObject, Message, ToolCall
from environments.visible import visible_line

if TYPE_CHECKING:  # it takes a second to load, and most processes that know of it speak with no model
    from renderers.base import ParsedResponse, ParsedToolCall, RenderedTokens, Renderer

    from environments.policy import Completion, Policy

log = logging.getLogger(__name__)

FAMILIES = (
    "qwen3",
    "qwen3.5",
    "qwen3.6",
    "prime-qwen3",
    "glm-4.5",
    "glm-5",
    "glm-5.1",
    "minimax-m2",
    "deepseek-v3",
    "deepseek-r1",
    "kimi-k2",
    "nemotron-3",
    "llama-3",
    "hy3",
)
"""Names of `renderers`, of text models, in the order in which they are tried. Without gpt-oss: its renderer begins the
policy's reasoning, which servers leave to the policy."""
_DATE = re.compile("Today Date: ([^\n]{1,40})\n")
"""Llama 3's prompts have a date, and the templates of some write that of the day."""
_LARGE = 50_000
"""Characters of a conversation that is rendered in a thread, so that others are not held up by it."""
_MAX_WORDS = 500
"""Of an error, in the log: they may be those of whoever wrote the tokenizer."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
_ASKED = [Message("system", "Be brief."), Message("user", "1 + 2?")]
_CALL = ToolCall("call_1", FunctionCall("add", '{"a": 1, "b": 2}'))
_CALLED, _CALLED_WORDLESS = (
    [*_ASKED, Message("assistant", said, tool_calls=[_CALL]), Message("tool", "3", tool_call_id="call_1")]
    for said in ("", None)
)
PROBES: tuple[tuple[list[Message], list[JsonObject]], ...] = (
    (_ASKED, []),
    (_ASKED[1:], [_TOOL]),
    (_CALLED, [_TOOL]),
    (_CALLED_WORDLESS, [_TOOL]),
)
"""Conversations that a renderer and the chat template must make the same tokens of.

The check of a launch encodes their words too, and all of ASCII: a tokenizer that breaks over that breaks there.
"""


@contextmanager
def _refusals() -> Iterator[None]:
    """What a renderer raises says that its format has no such conversation: as a chat template that refuses it."""
    try:
        yield
    except Exception as error:
        raise PolicyRefused(f"The chat format refuses this: {type(error).__name__}: {words_of(error)}") from error


class RenderedChat:
    """The format of one family, with one model's tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer, family: str, **options: Any) -> None:
        """Raises whatever the renderer raises for a tokenizer that lacks the family's tokens, or for its options."""
        from renderers import config_from_name, create_renderer

        self.family = family
        self._tokenizer = tokenizer
        # By default a further question drops the reasoning behind, and with it the tokens that were sampled.
        kind: Any = type(config_from_name(family))
        self._renderer: Renderer = create_renderer(tokenizer, kind(thinking_retention="all", **options))
        self.ends = tuple(self._renderer.get_stop_token_ids())

    async def ready(self) -> None:
        """The family is known."""

    async def render(self, messages: Sequence[Message], tools: Sequence[JsonObject]) -> list[int]:
        said, told = self._plain(messages), self._tokenizer.marked(list(tools))
        if len(msgspec.json.encode((messages, tools))) > _LARGE:
            return await asyncio.to_thread(self._render, said, told)
        return self._render(said, told)

    def probed(self) -> list[list[int]]:
        """What it makes of the probes. Raises PolicyRefused."""
        return [self._render(self._plain(messages), self._tokenizer.marked(tools)) for messages, tools in PROBES]

    @_refusals()
    def _render(self, messages: list[Any], tools: list[Any]) -> list[int]:
        rendered: list[int] = self._renderer.render_ids(messages, tools=tools or None, add_generation_prompt=True)
        return rendered

    @_refusals()
    def _bridge(
        self, prompt: list[int], reply: list[int], added: list[Any], tools: list[Any] | None
    ) -> "RenderedTokens | None":
        return self._renderer.bridge_to_next_turn(prompt, reply, added, tools=tools)

    async def extend(
        self,
        token_ids: list[int],
        sampled: "Completion",
        messages: Sequence[Message],
        added: Sequence[Message],
        tools: Sequence[JsonObject],
    ) -> list[int] | None:
        reply = sampled.token_ids
        prompt = token_ids[: -len(reply)]
        said, told = self._plain(added), self._tokenizer.marked(list(tools)) or None
        if len(msgspec.json.encode(added)) > _LARGE:
            bridged = await asyncio.to_thread(self._bridge, prompt, reply, said, told)
        else:
            bridged = self._bridge(prompt, reply, said, told)
        if bridged is not None:
            found = list(bridged.token_ids)
        elif reply[-1] in self.ends:
            # A stop inside of reasoning. What follows an end of a turn does not depend on what is before it.
            stop = reply[-1:]
            bridged = self._bridge(stop, stop, said, told)
            if bridged is None:
                return None
            found = token_ids + list(bridged.token_ids)[2:]
        else:
            return None
        # Of a reply with an end of a turn in its middle the bridge keeps what is before that: it is rendered anew.
        return found if found[: len(token_ids)] == token_ids else None

    def parse(
        self, prompt_token_ids: list[int], completion: "Completion", tools: Sequence[JsonObject] | None
    ) -> Message:
        said = self._before_stop(completion)
        try:
            parsed = self._renderer.parse_response(said, tools=list(tools or ()) or None, prompt_ids=prompt_token_ids)
            if parsed.tool_calls and not self._may_call(parsed.tool_calls[0], tools):
                return self._uncalled(said, parsed)
            calls = [_call(each) for each in parsed.tool_calls]
        except Exception as error:  # noqa: BLE001 - a policy may have sampled anything, and one odd reply is no failure
            log.info("a reply that cannot be parsed as %s stays text: %s", self.family, error)
            return self._as_text(said)
        reasoning = parsed.reasoning_content
        content = parsed.content if parsed.content or not (calls or reasoning is not None) else None
        return Message("assistant", content, tool_calls=calls, reasoning_content=reasoning)

    def _may_call(self, call: "ParsedToolCall", tools: Sequence[JsonObject] | None) -> bool:
        """Whether a call is one. Llama 3's is JSON like any other, and only the name of a tool tells it."""
        if tools is None:
            return True
        if self.family == "llama-3":
            return call.name in [tool["function"]["name"] for tool in tools]
        return bool(tools)

    def _uncalled(self, said: list[int], parsed: "ParsedResponse") -> Message:
        """A reply whose calls are text: nobody told it of a tool."""
        span = parsed.tool_calls[0].token_span
        if span is None:
            return self._as_text(said)
        rest = self._as_text(said[span[0] :]).text
        content = f"{parsed.content}\n{rest}" if parsed.content else rest
        return Message("assistant", content, reasoning_content=parsed.reasoning_content)

    def _before_stop(self, completion: "Completion") -> list[int]:
        """The tokens of a reply without a client's stop. A string may begin inside of a token: that is parted."""
        token_ids, stop = completion.token_ids, completion.stopped_by
        if stop is None:
            return token_ids
        if isinstance(stop, int):
            return token_ids[:-1]
        text, kept = self._tokenizer.decode(token_ids), len(token_ids)
        # It was complete with the last token.
        begin = text.find(stop, max(len(self._tokenizer.decode(token_ids[:-1])) - len(stop), 0))
        said = text[:begin] if begin >= 0 else text
        while not said.startswith(whole := self._tokenizer.decode(token_ids[:kept])):
            kept -= 1
        return token_ids[:kept] + self._tokenizer.encode(self._tokenizer.marked(said[len(whole) :]))

    def _as_text(self, token_ids: list[int]) -> Message:
        """A reply with a call that is none: it would vanish from the message, and whoever plays has to see it."""
        return Message("assistant", self._tokenizer.decode([token for token in token_ids if token not in self.ends]))

    def _plain(self, messages: Sequence[Message]) -> list[Any]:
        # Content as one text: some renderers write parts as the JSON that they are, and "None" where there is none.
        plain = [_with_objects(msgspec.to_builtins(message) | {"content": message.text}) for message in messages]
        # Marked last: what was escaped in arguments is text only when they are objects.
        return [self._tokenizer.marked(message) for message in plain]


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments as objects where they are: chat templates write objects, as servers hand them over."""
    for call in message.get("tool_calls", ()):
        function = call["function"]
        try:
            function["arguments"] = json.loads(function["arguments"])
        except (ValueError, RecursionError):
            continue
    return message


def _call(parsed: "ParsedToolCall") -> ToolCall:
    """Raises ValueError, RecursionError for what is no call."""
    from renderers.base import ToolCallParseStatus

    arguments, name = parsed.arguments, parsed.name
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    if parsed.status is not ToolCallParseStatus.OK or not isinstance(name, str):
        raise ValueError(f"a call is {parsed.status}")
    (name + text).encode()  # lone surrogates, which JSON can spell, are no text
    return ToolCall(parsed.id or f"call_{uuid.uuid4().hex[:24]}", FunctionCall(name, text))


async def find(policy: "Policy", directory: Path, closed: Iterable[Path] = ()) -> RenderedChat | None:
    """The format of the model in a directory, which the policy serves; None: `renderers` knows none that fits it.

    None as well where the tokenizer cannot be used, whatever is wrong with it; ``closed``: where runs write, and no
    link is followed. Raises PolicyError when the policy cannot be asked.
    """
    try:
        tokenizer = await asyncio.to_thread(_load, directory, closed)
    except (OSError, ValueError, MemoryError) as error:
        words = visible_line(words_of(error))[:_MAX_WORDS] or type(error).__name__
        log.info("no tokenizer in %s (%s): its chat template alone is used", directory, words)
        return None
    expected = await _templated(policy)
    # In a thread: a tokenizer may take its time over a text.
    chat = await asyncio.to_thread(_speaking, tokenizer, expected)
    if chat is None:
        log.info("%s speaks no format of `renderers`: its chat template alone is used", directory)
    else:
        log.info("%s speaks %s", directory, chat.family)
    return chat


def _speaking(tokenizer: ChatTokenizer, expected: list[list[int] | None]) -> RenderedChat | None:
    """The first format that makes of the probes what the template does."""
    for family in FAMILIES:
        try:
            chat = RenderedChat(tokenizer, family, **_options(tokenizer, family, expected))
            if chat.probed() == expected:
                return chat
        except Exception as error:  # noqa: BLE001 - a renderer says by whatever it raises that it is of another model
            log.debug("%s does not speak %s: %s", tokenizer.name_or_path, family, error)
    return None


def _options(tokenizer: ChatTokenizer, family: str, expected: list[list[int] | None]) -> dict[str, str]:
    """What the renderer has to know of the model's template. The date stays that of this look: no turn of a session may
    say another one than the turns before."""
    if family != "llama-3" or expected[0] is None:
        return {}
    found = _DATE.search(tokenizer.decode(expected[0]))
    return {"date_string": found[1]} if found else {}


async def _templated(policy: "Policy") -> list[list[int] | None]:
    """The tokens that the model's template makes of the probes; None where it refuses one, or has no room for it."""
    found: list[list[int] | None] = []
    for messages, tools in PROBES:
        try:
            found.append(await policy.render(messages, tools))
        except (PolicyRefused, ContextFull):
            found.append(None)
    return found


def _load(directory: Path, closed: Iterable[Path]) -> ChatTokenizer:
    """Raises OSError, ValueError where there is none. Others are not held up while `renderers` is loaded."""
    import renderers  # noqa: F401

    return ChatTokenizer(directory, closed)
