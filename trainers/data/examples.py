"""One line of data as an example: a conversation, a text, or tokens; or a pair of them.

    {"messages": [...]}                                 conversation; "tools" beside it, if there are any
    {"prompt": [...], "completion": [...]}              conversation of which only the completion is trained
    {"prompt": "...", "completion": "..."}              text, as it is, without a chat template
    {"token_ids": [...], "loss_mask": [...]}            tokens, as they were sampled
    {"prompt": ..., "chosen": ..., "rejected": ...}     pair, each in one of these forms; without a prompt, what the
                                                        two have in common at their beginning is the prompt

Messages are in the OpenAI chat format. `problem_key` names the problem, if there is one; `"label": false` says that the
example is to be avoided, as in data for KTO. Other keys are ignored.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from trainers.errors import DataError
from trainers.run_config.data import Role

Message = dict[str, Any]


class Tokens(msgspec.Struct, frozen=True):
    """Tokens of this very model's tokenizer."""

    token_ids: list[int]
    loss_mask: list[int]
    """1 where the token is trained."""


@dataclass(frozen=True)
class Conversation:
    """Messages that the chat template renders."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    prompt_messages: int = 0
    """How many messages, from the first, are never trained."""


@dataclass(frozen=True)
class Text:
    """A text and how it goes on. The completion alone is trained, up to and with the end-of-text token."""

    prompt: str
    completion: str


Example = Conversation | Text | Tokens


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt."""

    chosen: Example
    rejected: Example


class _Line(msgspec.Struct):
    messages: list[Message] | None = None
    prompt: str | list[Message] | None = None
    completion: str | list[Message] | None = None
    chosen: str | list[Message] | Tokens | None = None
    rejected: str | list[Message] | Tokens | None = None
    token_ids: list[int] | None = None
    loss_mask: list[int] | None = None
    tools: list[dict[str, Any]] | str | None = None
    problem_key: Any = None
    label: Any = None


COLUMNS = frozenset(_Line.__struct_fields__)
"""What is read of a line or row."""
_ROLES: tuple[str, ...] = get_args(Role)
_decoder = msgspec.json.Decoder(_Line)


def parse_example(line: bytes, where: str, roles: Sequence[str]) -> Example:
    """An example with something to train on. Raises DataError naming `where` and what to mend."""
    fields, tools = _decode(line, where)
    example: Example
    if fields.messages is not None:
        example = Conversation([_message(message, where) for message in fields.messages], tools)
    elif fields.token_ids is not None and fields.loss_mask is not None:
        example = Tokens(fields.token_ids, fields.loss_mask)
    elif fields.prompt is not None and fields.completion is not None:
        example = _continue(fields.prompt, fields.completion, tools, where)
    elif fields.chosen is not None:
        raise DataError(f"{where}: is a pair of answers. Set data.preference.beta to learn from pairs.")
    else:
        raise DataError(f"{where}: has neither `messages`, nor `prompt` and `completion`, nor tokens and their mask.")
    _check(example, where, roles)
    return example


def parse_wanted(line: bytes, where: str, roles: Sequence[str]) -> Example:
    """An example to imitate. Raises DataError as `parse_example` does, and for one that is to be avoided."""
    example = parse_example(line, where, roles)
    if not is_wanted(line):
        reason = "`label` is false: the example is to be avoided, and would be imitated"
        raise DataError(f"{where}: {reason}. Remove such lines, or import the file: a dataset leaves them out.")
    return example


def is_wanted(line: bytes) -> bool:
    """Whether a line that was parsed is worth imitating."""
    return _decoder.decode(line).label is not False


def parse_pair(line: bytes, where: str, roles: Sequence[str]) -> Pair:
    """Two examples that begin alike. Raises DataError naming `where` and what to mend."""
    fields, tools = _decode(line, where)
    chosen, rejected = fields.chosen, fields.rejected
    if chosen is None or rejected is None:
        raise DataError(f"{where}: needs `chosen` and `rejected`. To imitate examples, leave data.preference out.")
    if chosen == rejected:
        raise DataError(f"{where}: `chosen` and `rejected` are the same. Remove the line.")
    if isinstance(chosen, Tokens) and isinstance(rejected, Tokens):
        pair = Pair(chosen, rejected)
    elif isinstance(chosen, Tokens) or isinstance(rejected, Tokens):
        raise DataError(f"{where}: one answer has tokens and the other has not. Give both in the same form.")
    elif fields.prompt is not None:
        pair = Pair(*(_continue(fields.prompt, answer, tools, where) for answer in (chosen, rejected)))
    elif isinstance(chosen, str) or isinstance(rejected, str):
        raise DataError(f"{where}: answers that are text need a `prompt`.")
    else:
        common = _common(chosen, rejected)
        pair = Pair(*(_conversation(answer[:common], answer[common:], tools, where) for answer in (chosen, rejected)))
    for name, example in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        _check(example, f"{where}: {name}", roles)
    return pair


def problem_of(line: bytes) -> int:
    """Which problem a line that was parsed is of, as 64 bits: its key, else its prompt, else what the user says first.

    The control plane puts rows into splits by the same.
    """
    fields = _decoder.decode(line)
    named: tuple[Any, ...] = (fields.problem_key, fields.prompt)
    problem: Any = next((each for each in named if each not in (None, "", [])), None)
    if problem is None:
        told = fields.messages or fields.chosen
        said = told if isinstance(told, list) else []
        problem = next((message.get("content") for message in said if message.get("role") == "user"), None)
    content = line if problem is None else msgspec.json.encode(problem, order="sorted")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


def _decode(line: bytes, where: str) -> tuple[_Line, list[dict[str, Any]] | None]:
    try:
        fields = _decoder.decode(line)
        tools = json.loads(fields.tools) if isinstance(fields.tools, str) else fields.tools
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{where}: {error}. A line is one JSON object.") from None
    except ValueError as error:
        raise DataError(f"{where}: tools is text that is no JSON: {error}") from None
    except RecursionError:
        raise DataError(f"{where}: is nested too deep to be read.") from None
    return fields, tools or None


def _continue(
    prompt: str | list[Message], completion: str | list[Message], tools: list[dict[str, Any]] | None, where: str
) -> Example:
    if isinstance(prompt, str) and isinstance(completion, str):
        return Text(prompt, completion)
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    after = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    if before and after and after[0].get("role") in ("system", "user"):
        if (again := _told_again(before, after)) is not None:
            before, after = after[:again], after[again:]
        elif after[0]["role"] == "system" or before[-1].get("role") == "user":
            raise DataError(f"{where}: an answer is a conversation of its own, without the `prompt`. Leave that out.")
    return _conversation(before, after, tools, where)


def _told_again(prompt: list[Message], answer: list[Message]) -> int | None:
    """Up to where an answer says its prompt once more: in sets of the hub it is often the whole conversation, with a
    system message before the prompt, or with earlier turns of which that is the last question. None: nowhere."""
    ends = range(len(prompt), len(answer) + 1)
    return next((end for end in ends if answer[end - len(prompt) : end] == prompt), None)


def _conversation(
    before: list[Message], after: list[Message], tools: list[dict[str, Any]] | None, where: str
) -> Conversation:
    return Conversation([_message(message, where) for message in [*before, *after]], tools, len(before))


def _common(one: list[Message], other: list[Message]) -> int:
    """How many messages two conversations have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(one), len(other)))


def _message(message: Message, where: str) -> Message:
    """A message as chat templates want it: content is text, arguments of tool calls are objects."""
    if message.get("role") not in _ROLES:
        raise DataError(f"{where}: {message.get('role')!r} is no role. Use one of: {', '.join(_ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        if any(not isinstance(part, dict) or not isinstance(part.get("text"), str) for part in content):
            raise DataError(f"{where}: content has parts that are not text. Only text is trained.")
        content = "".join(part["text"] for part in content)
    calls = message.get("tool_calls")
    may_be_silent = calls or message.get("reasoning_content") is not None
    if not isinstance(content, str) and not (content is None and may_be_silent):
        raise DataError(f"{where}: content of a message must be text, or a list of parts of type text.")
    # Templates ask whether there are calls by whether there is a list of them, which servers send empty.
    said = {key: value for key, value in message.items() if value is not None and (key != "tool_calls" or value)}
    changed = said | {"content": content or ""}
    if calls:
        if not isinstance(calls, list):
            raise DataError(f"{where}: tool_calls must be a list.")
        changed["tool_calls"] = [_call(call, where) for call in calls]
    return changed


def _call(call: Any, where: str) -> Any:
    """Servers parse arguments that came as text before they render a call, so the trained text has to do it too."""
    try:
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (KeyError, TypeError, ValueError, RecursionError):
        form = '{"type": "function", "function": {"name": ..., "arguments": {...}}}'
        raise DataError(f"{where}: a tool call must look like {form}") from None
    return {**call, "function": {**function, "arguments": arguments}}


def _check(example: Example, where: str, roles: Sequence[str]) -> None:
    if isinstance(example, Tokens):
        if len(example.token_ids) != len(example.loss_mask):
            sizes = f"{len(example.token_ids)} token ids and {len(example.loss_mask)} of a mask"
            raise DataError(f"{where}: has {sizes}. Give one for each.")
        if not any(example.loss_mask[1:]):
            raise DataError(f"{where}: loss_mask trains no token behind the first.")
    elif isinstance(example, Conversation):
        spoken = [message["role"] for message in example.messages]
        if spoken[:1] == ["assistant"]:
            raise DataError(f"{where}: needs another message before the assistant's; the roles are {spoken}")
        if not set(roles) & set(spoken[example.prompt_messages :]):
            wanted = " or ".join(roles)
            raise DataError(f"{where}: needs a message of {wanted} to train on; the roles are {spoken}")
