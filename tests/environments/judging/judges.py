"""Judges of tests: models that read what they are shown, as a real one would, and answer by a rule."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from environments.types import ChatAnswer, JsonObject, Message

_QUOTED = re.compile(r"<<<([0-9a-f]{16})\n(.*?)\n\1>>>", re.DOTALL)


class Shown(NamedTuple):
    """What a judge is shown."""

    system: str
    conversation: str
    replies: list[str]


def shown(messages: Sequence[Message]) -> Shown:
    """Read it as a careful reader does: only the announced mark ends a quotation."""
    system, user = messages
    conversation, *replies = [text for _, text in _QUOTED.findall(user.text)]
    return Shown(system.text, conversation, replies)


Rule = Callable[[Shown], str | Exception]


class RuleJudge:
    """Answers as `environments.others.Others`, and keeps what it was asked."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.asked: list[Shown] = []
        self.given: list[dict[str, Any]] = []

    async def reply(
        self, name: str, messages: Sequence[Message], tools: Sequence[JsonObject] = (), **given: Any
    ) -> ChatAnswer:
        self.asked.append(shown(messages))
        self.given.append({"name": name, **given})
        said = self.rule(self.asked[-1])
        if isinstance(said, Exception):
            raise said
        return ChatAnswer(message=Message("assistant", said))


def says(winner: str) -> str:
    return json.dumps({"winner": winner})


def better(key: Callable[[str], Any]) -> Rule:
    """Prefers the reply whose key is larger."""

    def rule(seen: Shown) -> str:
        one, other = map(key, seen.replies)
        return says("tie" if one == other else "A" if one > other else "B")

    return rule


def scoring(**scores: float) -> Rule:
    return lambda seen: f"Here you are:\n```json\n{json.dumps({'scores': scores})}\n```"


def sorts(seen: Shown) -> str:
    """Knows which words are asked for, and prefers them in order: the share of words that are where they belong."""
    asked = sorted(seen.conversation.rpartition(":")[2].split())
    places = [sum(a == b for a, b in zip(text.split(), asked, strict=False)) for text in seen.replies]
    lengths = [abs(len(text.split()) - len(asked)) for text in seen.replies]
    keys = list(zip(places, (-length for length in lengths), strict=True))
    return says("tie" if keys[0] == keys[1] else "A" if keys[0] > keys[1] else "B")
