"""Plays sessions at once with openai-agents, unmodified, each a loop with a tool whose replies are streams.

Reads `[{"base_url": ..., "api_key": ..., "prompt": ...}]`, and prints what each agent was told, turn by turn.
"""

import asyncio
import json
import sys
from typing import Any

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from agents.exceptions import AgentsException
from openai import AsyncOpenAI
from openai.types.responses import Response

MAX_TURNS = 3
REPLIED = {"response.completed", "response.incomplete"}
"""The framework keeps no reply that the token limit cut, and was told it all the same."""


async def play(base_url: str, api_key: str, prompt: str) -> dict[str, Any]:
    """What an agent was told, and the last sum that its tool gave."""
    sums = [0]

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        sums.append(a + b)
        return sums[-1]

    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        model = OpenAIResponsesModel("policy", client)
        agent = Agent(name="adder", instructions="Be brief.", model=model, tools=[function_tool(add)])
        running = Runner.run_streamed(agent, prompt, max_turns=MAX_TURNS)
        ended, turns = "", []
        try:
            async for event in running.stream_events():
                if event.type == "raw_response_event" and event.data.type in REPLIED:
                    turns.append(turn(event.data.response))
        except AgentsException as error:  # the policy calls for ever, or what there is not
            ended = repr(error)
    return {"sum": sums[-1], "ended": ended, "turns": turns}


def turn(response: Response) -> dict[str, Any]:
    """One reply as the framework was told it."""
    text, calls = "", []
    for item in response.output:
        if item.type == "message":
            text += "".join(part.text for part in item.content if part.type == "output_text")
        elif item.type == "function_call":
            calls.append([item.name, item.arguments])
    usage = response.usage
    assert usage is not None
    return {"given": usage.input_tokens, "sampled": usage.output_tokens, "text": text, "calls": calls}


async def main() -> None:
    set_tracing_disabled(True)
    print(json.dumps(await asyncio.gather(*(play(**session) for session in json.load(sys.stdin)))))


if __name__ == "__main__":
    asyncio.run(main())
