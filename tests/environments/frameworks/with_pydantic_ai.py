"""Plays with pydantic-ai, unmodified, first with replies as streams and then with whole ones.

with_pydantic_ai.py chat_completions|responses|messages
"""

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

MODELS: dict[str, Any] = {
    "chat_completions": OpenAIChatModel,
    "responses": OpenAIResponsesModel,
    "messages": AnthropicModel,
}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def listen(context: Any, events: Any) -> None:
    """Makes the framework ask for streams."""
    async for _ in events:
        pass


async def main(api: str) -> None:
    agent = Agent(MODELS[api]("policy"), instructions="Be brief.", tools=[add])
    first = await agent.run("1 + 2 + 4?", event_stream_handler=listen)
    print(first.output)
    again = await agent.run("And then?", message_history=first.all_messages())
    print(again.output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
