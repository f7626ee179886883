"""What does the gateway cost, and how much does one core of it take? Against an engine that answers at once.

    python -m benchmarks.gateway --requests 3000 --sessions 10000

1. Latency, in pairs: a turn of a conversation through the gateway, and the same tokens from the engine itself.
2. Throughput: many conversations at once. Requests for each second of CPU that the gateway's process used.
3. Memory: sessions of ten turns, ended in lots; what the process holds after each lot.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from statistics import median, quantiles
from typing import Any

import httpx

TURNS = 10
TOKENS = 64
LIMITS = httpx.Limits(max_connections=200, max_keepalive_connections=200)


class Program:
    """A process that answers lines on stdin with lines on stdout."""

    def __init__(self, module: str, *arguments: str) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", f"benchmarks.gateway_load.{module}", *arguments]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def line(self) -> str:
        """The next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended with code {self.process.wait()}")
        return line

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command; return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.line())
        return answer


async def play(http: httpx.AsyncClient, base_url: str, turns: int, engine: str = "") -> list[tuple[float, float]]:
    """One conversation. Seconds of each turn, and of the same prompt's tokens from the engine if one is named."""
    messages, times, prompt = [{"role": "user", "content": "What is 17 + 25?"}], [], 20
    for turn in range(turns):
        began = time.perf_counter()
        answer = await http.post(f"{base_url}/chat/completions", json={"messages": messages, "max_tokens": TOKENS})
        answer.raise_for_status()
        through = time.perf_counter() - began
        prompt = answer.json()["usage"]["prompt_tokens"]
        direct = 0.0
        if engine:
            wanted = {"token_ids": [7] * prompt, "sampling_params": {"n": 1, "max_tokens": TOKENS}}
            began = time.perf_counter()
            (await http.post(f"{engine}/inference/v1/generate", json=wanted)).raise_for_status()
            direct = time.perf_counter() - began
        times.append((through, direct))
        messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": f"And {turn}?"}]
    return times


async def many(addresses: list[str], at_once: int) -> int:
    """Play all of these sessions, so many at a time; returns the requests."""
    left = iter(addresses)

    async def player(http: httpx.AsyncClient) -> int:
        return sum([len(await play(http, address, TURNS)) for address in left])

    async with httpx.AsyncClient(limits=LIMITS, trust_env=False, timeout=60) as http:
        return sum(await asyncio.gather(*(player(http) for _ in range(at_once))))


async def latencies(addresses: list[str], engine: str) -> list[tuple[float, float]]:
    """One request after the other."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        return [pair for address in addresses for pair in await play(http, address, TURNS, engine)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000, help="of latency and of throughput, each")
    parser.add_argument("--sessions", type=int, default=10_000, help="of ten turns, for memory; 0: none")
    parser.add_argument("--lot", type=int, default=500, help="sessions that are open at a time")
    parser.add_argument("--at-once", type=int, default=32, help="conversations that wait for an answer at a time")
    asked = parser.parse_args()
    engine = Program("engine")
    url = f"http://127.0.0.1:{int(engine.line())}"
    gateway = Program("served", url)
    try:
        gateway.ask(open=0)
        asyncio.run(many(gateway.ask(open=20)["addresses"], 4))  # warm
        pairs = asyncio.run(latencies(gateway.ask(open=asked.requests // TURNS)["addresses"], url))
        added = sorted(1000 * (through - direct) for through, direct in pairs)
        print(
            f"latency: through {1000 * median(each for each, _ in pairs):.2f} ms, direct"
            f" {1000 * median(each for _, each in pairs):.2f} ms; added p50 {median(added):.2f} ms,"
            f" p90 {quantiles(added, n=10)[-1]:.2f} ms ({len(pairs)} pairs)"
        )
        before = gateway.ask(open=asked.requests // TURNS)
        began = time.perf_counter()
        requests = asyncio.run(many(before["addresses"], asked.at_once))
        seconds, after = time.perf_counter() - began, gateway.ask(end=True)
        cpu = after["cpu_s"] - before["cpu_s"]
        print(
            f"throughput: {requests / cpu:.0f} requests for each second of CPU ({1000 * cpu / requests:.2f} ms each);"
            f" {requests / seconds:.0f} a second beside its client and the engine"
        )
        print(f"branches of each session: {after['branches'] / (after['turns'] / TURNS):.3f}")
        held = []
        for _ in range(asked.sessions // asked.lot):
            asyncio.run(many(gateway.ask(open=asked.lot)["addresses"], asked.at_once))
            held.append(gateway.ask(end=True)["rss"] / 2**20)
        if held:
            middle = held[len(held) // 2]
            print(f"memory after each lot of {asked.lot} sessions: {held[0]:.0f} .. {middle:.0f} .. {held[-1]:.0f} MB")
    finally:
        for program in (gateway, engine):
            program.process.kill()


if __name__ == "__main__":
    main()
