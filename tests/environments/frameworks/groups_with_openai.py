"""Plays sessions at once with the OpenAI SDK, unmodified: tools, streams, and the logprobs of every token.

Reads `[{"base_url": ..., "api_key": ..., "prompt": ...}]`, and prints what the SDK was told, turn by turn.
"""

import asyncio
import json
import sys
from typing import Any

from openai import AsyncOpenAI

MAX_TURNS = 3
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}


async def play(base_url: str, api_key: str, prompt: str) -> dict[str, Any]:
    """What the SDK was told, and the last sum that the tool gave."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    turns: list[dict[str, Any]] = []
    last = 0
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        while len(turns) < MAX_TURNS:
            message, turn = await ask(client, messages)
            turns.append(turn)
            messages.append(message)
            if not message.get("tool_calls"):
                break
            for call in message["tool_calls"]:
                result = answer(**call["function"])
                last = last if result is None else result
                told = "error" if result is None else str(result)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})
    return {"sum": last, "ended": "", "turns": turns}


async def ask(client: AsyncOpenAI, messages: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reply, whose stream is put together, and the account of it."""
    stream = await client.chat.completions.create(
        model="policy",
        messages=messages,
        tools=[TOOL],
        logprobs=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, calls, sampled, usage = "", [], [], None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            calls += [each.model_dump(exclude={"index"}) for each in choice.delta.tool_calls or ()]
            sampled += (choice.logprobs.content or []) if choice.logprobs else []
    assert usage is not None
    turn = {
        "given": usage.prompt_tokens,
        "sampled": usage.completion_tokens,
        "text": text,
        "calls": [[call["function"]["name"], call["function"]["arguments"]] for call in calls],
        "token_ids": [int(each.token.removeprefix("token_id:")) for each in sampled],
        "logprobs": [each.logprob for each in sampled],
    }
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "tool_calls": calls}
    return {key: value for key, value in message.items() if value} or {"role": "assistant", "content": ""}, turn


def answer(name: str, arguments: str) -> int | None:
    """What the tool gives; None for what it cannot run."""
    try:
        told = json.loads(arguments)
        return int(told["a"]) + int(told["b"]) if name == "add" else None
    except (ValueError, KeyError, TypeError):
        return None


async def main() -> None:
    print(json.dumps(await asyncio.gather(*(play(**session) for session in json.load(sys.stdin)))))


if __name__ == "__main__":
    asyncio.run(main())
