"""What the policy said, as rewards read it: whatever it is, in time that grows with its length alone.

Reasoning is no answer: neither `reasoning_content` nor what stands in `<think>`.
"""

import re
import textwrap
from decimal import Decimal
from typing import Any

from environments.types import FinishedRollout, Message, Problem

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
# A minus behind a number or a bracket takes away and is no sign.
NUMBER = re.compile(rf"(?:(?<![\w)\]}}])[-−])?(?:{_DIGITS})(?:[eE][-+]?[0-9]{{1,3}}(?![0-9]))?")
_ENTRY = re.compile(r"[ \t]*(?:[-*+]|[0-9]{1,9}[.)])[ \t]+")
"""Of a list, up to its text."""
_QUOTES = re.compile(r"\"{3}|'{3}")
_LANGUAGE = re.compile(r"[\w+#.-]*")
_BEYOND = 3
"""Spaces that a line of backticks may be indented further than the text around it."""
_BRACE = re.compile(r"\\boxed\{|(?<!\\)[{}]")
WINDOW = 16_384
"""Characters at the end among which a last number is looked for, and most in a box."""


def messages_of_policy(problem: Problem, rollout: FinishedRollout) -> list[Message]:
    """The assistant's messages behind those that the problem itself begins with: its examples are not the policy's."""
    asked = problem.messages
    messages = rollout.messages[len(asked) :] if rollout.messages[: len(asked)] == asked else rollout.messages
    return [message for message in messages if message.role == "assistant"]


def answer(problem: Problem, rollout: FinishedRollout) -> str:
    """The text of the policy's last reply, without its thoughts; empty if there is none."""
    replies = messages_of_policy(problem, rollout)
    return without_thoughts(encodable(replies[-1].text)) if replies else ""


def everything(problem: Problem, rollout: FinishedRollout) -> str:
    """All that the policy wrote, its thoughts too."""
    replies = messages_of_policy(problem, rollout)
    parts = (part for reply in replies for part in (reply.reasoning_content, reply.text) if part)
    return encodable("\n".join(parts))


def encodable(text: str) -> str:
    """The text with `?` for halves of characters, which no UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def without_thoughts(text: str) -> str:
    """What follows the last `</think>`, up to a `<think>` that nobody closed."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def in_tag(text: str, tag: str) -> str | None:
    """What stands in the last whole `<tag>...</tag>`; None: there is none."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return text[start + len(tag) + 2 : end] if 0 <= start < end else None


def in_fence(text: str) -> str | None:
    """What stands in the last whole block between lines of three backticks; None: there is none.

    Where no block is at the margin, such lines may be indented as a list is, and words may stand before the first.
    """
    parts = f"\n{text}".split("\n```")
    if whole := (len(parts) - 1) // 2:
        # Text and code alternate; the first line of the code names its language.
        return parts[2 * whole - 1].partition("\n")[2]
    return _in_other_fence(text.split("\n")) if "```" in text else None


def _in_other_fence(lines: list[str]) -> str | None:
    """The same, of blocks that are indented or begin behind words; their code loses its indentation."""
    found: str | None = None
    begin, most = 0, 0  # the first line of an open block; how far its last may be indented
    listed = 0  # where text of the list's entry begins
    quoted = False  # in a string of Python: what stands in a docstring is an example, of code without a block
    for number, line in enumerate(lines):
        words, fence, told = line.partition("```")
        depth, told = _depth(line), told.lstrip("`").strip()
        if not begin:
            quoted ^= len(_QUOTES.findall(line)) % 2 == 1
            if entry := _ENTRY.match(line):
                listed = entry.end()
            elif line.strip() and depth < listed:
                listed = 0
        if not fence or quoted:
            continue
        if words.strip():
            if not begin and _LANGUAGE.fullmatch(told) and number + 1 < len(lines):
                begin, most = number + 1, _depth(lines[number + 1]) + _BEYOND
        elif begin and depth <= most and not told:
            found, begin = _dedented(lines[begin:number], most - _BEYOND), 0
        # What names a language begins a block, also in one that has no end then.
        elif (told or not begin) and 0 < depth <= listed + _BEYOND and "`" not in told:
            begin, most = number + 1, depth + _BEYOND
    return found


def _dedented(lines: list[str], depth: int) -> str:
    return textwrap.dedent("\n".join(line[min(_depth(line), depth) :] for line in lines))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def in_box(text: str) -> str | None:
    r"""What stands in the last whole `\boxed{...}`, braces counted, but for blank ones; None: there is no whole one."""
    found: str | None = None
    at = -1
    opened: list[int] = []  # where that begins of each open brace; -1 of one that is no box
    for brace in _BRACE.finditer(text, first) if (first := text.find(r"\boxed{")) >= 0 else ():
        if brace[0] != "}":
            opened.append(-1 if brace[0] == "{" else brace.end())
        elif opened and at < (begin := opened.pop()) and brace.start() < begin + WINDOW:
            inside = text[begin : brace.start()]
            if inside.strip():
                found, at = inside, begin
            elif found is None:
                found = inside
    return found


def last_line(text: str) -> str:
    """The last line that is not blank."""
    return text.rstrip().rpartition("\n")[2].strip()


def last_number(text: str) -> str | None:
    """The last number, as it is written but without commas; None: there is none."""
    numbers = NUMBER.findall(text[-WINDOW:])
    return numbers[-1].replace(",", "").replace("−", "-") if numbers else None


def is_same_number(one: str, other: str) -> bool:
    """Whether two numbers, as `last_number` gives them, have one value."""
    return Decimal(one) == Decimal(other)


def wanted(problem: Problem, field: str) -> Any:
    """What the problem says under a name. Raises ValueError where it says nothing."""
    value = problem.data.get(field)
    if value is None or value == "":
        known = ", ".join(sorted(problem.data)) or "nothing"
        raise ValueError(f"field: problem.data has no {field!r}; it has {known}")
    return value


def wanted_texts(problem: Problem, field: str) -> list[str]:
    """The answers that are right: one, or each of a list."""
    value = wanted(problem, field)
    texts = [str(each) for each in value] if isinstance(value, list) else [str(value)]
    if not texts or not all(text.strip() for text in texts):
        raise ValueError(f"field: an answer in {field!r} of problem.data is blank, as an empty reply would be")
    return texts
