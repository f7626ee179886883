"""What is known of an environment without playing it: its card, as its class and its arguments have it.

A card is the docstring of the class: a sentence, and paragraphs that begin with Task:, Data:, Reward: and Checked:.
"""

import inspect
import json
import re
from enum import StrEnum
from typing import Any

import msgspec

from environments import registry
from environments.errors import RegistryError

_PART = re.compile(r"(Task|Data|Arguments|Reward|Checked):\s*(.*)")
_TOLD_APART = "Arguments"
"""They are a table of their own."""


class CodeOwner(StrEnum):
    """Whose code it is."""

    OURS = "ships with Rollyard"
    BRIDGE = "a bridge to another library"
    INSTALLED = "was installed here"


class Argument(msgspec.Struct, frozen=True):
    """What an environment may be told."""

    name: str
    default: str
    """As JSON; empty where it has to be given."""
    description: str


class Card(msgspec.Struct, frozen=True):
    """Of one environment."""

    name: str
    origin: CodeOwner
    version: str = ""
    """Empty of somebody else's code, which nobody imports to describe it."""
    summary: str = ""
    parts: dict[str, str] = {}
    """Task, Data, Reward, Checked, as far as the class has them, in its order."""
    arguments: list[Argument] = []


def card(name: str) -> Card:
    """The card of a known name; of one that cannot be imported here it says why."""
    if not (registry.is_built_in(name) or registry.is_bridge(name)):
        return Card(name, CodeOwner.INSTALLED)
    try:
        found = registry.find_class(name)
    except RegistryError as error:
        return Card(name, CodeOwner.BRIDGE if registry.is_bridge(name) else CodeOwner.OURS, summary=str(error))
    summary, parts = described(inspect.getdoc(found) or "")
    return Card(
        name=name,
        origin=CodeOwner.BRIDGE if registry.is_bridge(name) else CodeOwner.OURS,
        version=found.version,
        summary=summary,
        parts=parts,
        arguments=_arguments(found.args_type),
    )


def described(docstring: str) -> tuple[str, dict[str, str]]:
    """The first paragraph and the parts of a class's docstring."""
    summary: list[str] = []
    between: list[str] = []
    """What else it says, to those who read the class."""
    parts: dict[str, list[str]] = {}
    lines = summary
    for line in map(str.strip, docstring.splitlines()):
        if begins := _PART.fullmatch(line):
            lines = parts.setdefault(begins[1], [])
            line = begins[2]
        elif not line and lines is summary:
            lines = between
        lines.append(line)
    told = {name: " ".join(filter(None, text)) for name, text in parts.items() if name != _TOLD_APART}
    return " ".join(filter(None, summary)), told


def _arguments(args_type: type[msgspec.Struct]) -> list[Argument]:
    schema: dict[str, Any] = msgspec.json.schema_components([args_type])[1][args_type.__name__]
    return [
        Argument(name, json.dumps(told["default"]) if "default" in told else "", told.get("description", ""))
        for name, told in ((name, schema["properties"][name]) for name in registry.arguments_of(args_type))
    ]
