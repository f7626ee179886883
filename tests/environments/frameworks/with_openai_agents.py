"""Plays with openai-agents, unmodified, first with replies as streams and then with whole ones.

with_openai_agents.py responses|chat_completions
"""

import asyncio
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main(api: str) -> None:
    set_tracing_disabled(True)
    if api == "chat_completions":
        set_default_openai_api("chat_completions")
    agent = Agent(name="adder", instructions="Be brief.", model="policy", tools=[function_tool(add)])
    running = Runner.run_streamed(agent, "1 + 2 + 4?")
    async for _ in running.stream_events():
        pass
    print(running.final_output)
    again = await Runner.run(agent, [*running.to_input_list(), {"role": "user", "content": "And then?"}])
    print(again.final_output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
