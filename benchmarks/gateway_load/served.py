"""A gateway before that engine, in a process of its own: `python -m benchmarks.gateway_load.served ENGINE`.

Speaks the format of the tiny model with tools. Reads commands from stdin, a line of JSON each, and answers with one:
`{"open": N}` the addresses of N new sessions, `{"end": true}` ends all of them; both say what CPU and memory were used.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from environments.chat.rendered import RenderedChat
from environments.chat.tokenizer import ChatTokenizer
from environments.config import SamplingParams
from environments.gateway.local import LocalGateway
from environments.policy import OpenAIPolicy
from environments.session import Session
from environments.types import Message, Problem
from trainers.model.tiny_tools import tool_tokenizer

SAMPLING = SamplingParams(max_tokens=64, max_turns=100)
PROBLEM = Problem(key="p", messages=[Message("user", "?")])


async def serve(engine: str) -> None:
    """Do what stdin says until it ends."""
    with tempfile.TemporaryDirectory() as directory:
        tool_tokenizer().save_pretrained(directory)
        chat = RenderedChat(ChatTokenizer(Path(directory)), "qwen3")
    process, gateway = psutil.Process(), LocalGateway()
    sessions: list[Session] = []
    async with OpenAIPolicy(f"{engine}/v1", "policy") as policy:
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            answer: dict[str, Any] = {}
            if "open" in command:
                new = [Session(PROBLEM, policy, chat, SAMPLING, gateway=gateway) for _ in range(command["open"])]
                sessions += new
                answer["addresses"] = [(await session.address()).base_url for session in new]
            if command.get("end"):
                answer["turns"] = sum(len(session.turns) for session in sessions)
                answer["branches"] = sum(max(1, len(session.end().branch_lengths)) for session in sessions)
                sessions.clear()
            times, memory = process.cpu_times(), process.memory_info()
            print(json.dumps(answer | {"cpu_s": times.user + times.system, "rss": memory.rss}), flush=True)
    await gateway.aclose()


def main() -> None:
    """Serve one engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", help="its address, without a path")
    asyncio.run(serve(parser.parse_args().engine))


if __name__ == "__main__":
    main()
