"""What does a call of the sandbox for tools cost, and how many fit into a second?

    python -m benchmarks.tool_sandbox --calls 400 --at-once 8

1. Latency: one call after the other, in turns with the same program outside of a sandbox.
2. Throughput: so many at a time.
3. Through a driver: requests and answers encoded, as an environment in a process of its own asks.
"""

import argparse
import asyncio
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

import msgspec

from environments.sandbox import interpreter
from environments.sandbox.remote import RemoteEngine, SandboxService
from environments.sandbox.tools import default, run, use

PROGRAMS = {"true": ["/bin/true"], "python": ["python3", "-c", "pass"]}


def arguments() -> argparse.ArgumentParser:
    """Every option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400, help="of each program and each figure")
    parser.add_argument("--at-once", type=int, default=8)
    return parser


async def latencies(argv: Sequence[str], calls: int) -> tuple[list[float], list[float]]:
    """Milliseconds in a sandbox, and outside, in turns."""
    inside, outside = [], []
    same = [shutil.which(argv[0], path=f"{interpreter.find().programs}:{os.defpath}") or argv[0], *argv[1:]]
    for _ in range(calls):
        inside.append(await _timed(argv))
        began = time.perf_counter()
        subprocess.run(same, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        outside.append(1000 * (time.perf_counter() - began))
    return inside, outside


async def throughput(argv: Sequence[str], calls: int, at_once: int) -> float:
    """Calls a second."""
    left = itertools.count()

    async def caller() -> None:
        while next(left) < calls:
            await _timed(argv)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    return calls / (time.perf_counter() - began)


async def measure(asked: argparse.Namespace) -> None:
    """Measure and print."""
    for name, argv in PROGRAMS.items():
        await latencies(argv, 10)  # warm
        inside, outside = await latencies(argv, asked.calls)
        added = [one - other for one, other in zip(inside, outside, strict=True)]
        print(
            f"{name:<8} p50 {median(inside):5.1f} ms, p90 {quantiles(inside, n=10)[-1]:5.1f}, p99"
            f" {quantiles(inside, n=100)[-1]:5.1f}; outside {median(outside):5.1f}; added p50 {median(added):5.1f}"
        )
        rate = await throughput(argv, asked.calls, asked.at_once)
        print(f"{name:<8} {rate:5.1f} calls a second, {asked.at_once} at a time, on {os.cpu_count()} cores")
    service = SandboxService(default(), at_once=asked.at_once)

    async def send(request: bytes) -> Any:
        return msgspec.msgpack.decode(await service.serve(request))

    use(RemoteEngine(send))
    inside = [await _timed(PROGRAMS["python"]) for _ in range(asked.calls)]
    print(f"python, through a driver: p50 {median(inside):5.1f} ms")


async def _timed(argv: Sequence[str]) -> float:
    began = time.perf_counter()
    done = await run(argv)
    if not done.succeeded:
        raise SystemExit(f"{argv} ended by {done.ended} with {done.exit_code}: {done.errors}")
    return 1000 * (time.perf_counter() - began)


if __name__ == "__main__":
    asyncio.run(measure(arguments().parse_args()))
