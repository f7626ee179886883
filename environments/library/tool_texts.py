"""Tools that take texts, and what a policy calls them with."""

import json

from environments.types import FunctionCall, JsonObject, PlayedRollout


def tool(name: str, description: str, **arguments: str) -> JsonObject:
    """A tool whose arguments are texts, in the OpenAI form; `arguments`: name -> description."""
    properties = {argument: {"type": "string", "description": words} for argument, words in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def text_argument(function: FunctionCall, name: str, argument: str) -> str | None:
    """The text that a call of the tool `name` gives it; None for a call that it cannot run."""
    try:
        given = json.loads(function.arguments) if function.name == name else None
    except (ValueError, RecursionError):
        return None
    text = given.get(argument) if isinstance(given, dict) and len(given) == 1 else None
    return text if isinstance(text, str) and text.strip() else None


def answers_of(rollout: PlayedRollout) -> list[str]:
    """What the tools told the policy, in order."""
    return [message.text for message in rollout.messages if message.role == "tool"]
