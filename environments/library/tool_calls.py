"""Tools of environments: what a policy calls them with, and what it is told."""

import json
from collections.abc import Awaitable, Callable

from environments.env import PolicySession
from environments.types import FunctionCall, JsonObject, Message, PlayedRollout, Problem

FAILED = "error:"
"""How the answer to a call that did not run begins."""


async def answer_calls(
    problem: Problem, session: PolicySession, answered: Callable[[FunctionCall], Awaitable[str]], most: int
) -> None:
    """Play an episode whose calls are answered one after the other, at most so many, until the policy makes none."""
    messages, left = list(problem.messages), most
    while True:
        reply = await session.reply(messages)
        messages.append(reply)
        if not reply.tool_calls or not left:
            return
        for call in reply.tool_calls:
            told = await answered(call.function) if left else f"{FAILED} no call is left"
            left -= bool(left)
            messages.append(Message("tool", told, tool_call_id=call.id))


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
