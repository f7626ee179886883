"""How long a directory takes to a node that shares no disk, beside a plain copy of it.

    python -m benchmarks.carrying --gib 1 --rounds 5

Both in turns, on one machine, so the network is its loopback: what is left is what carrying costs, two hashes of every
byte among it. A copy is `cp -r` and a sync of every file; a carried directory is whole, looked at and synced too.
Before each, the machine is made to have the memory in which files are kept: a virtual machine whose host takes back
what is free pays up to two seconds for each GiB of it anew, whichever way it is that comes first. Prints each round
and one JSON object at the end.
"""

import argparse
import asyncio
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from workers import doors, transfers
from workers.depot import PREFIX, Depot
from workers.nodes import Node

KEY = "of-nobody"
SHARDS = 4
ONE_MIB = bytes(2**20)


def main() -> int:
    """Measure. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0, help="of the directory, in four files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return 0
    with tempfile.TemporaryDirectory(prefix="rollyard-carrying-") as directory:
        found = measure(Path(directory), options.gib, options.rounds)
    print(json.dumps(found))
    return 0


async def serve(root: Path) -> None:
    """Be the agent of a node, and say where."""
    depot = Depot(root, Path("/replica"))
    async with doors.to_socket(None, KEY, "127.0.0.1", {PREFIX: depot.answer}) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


def measure(directory: Path, gib: float, rounds: int) -> dict[str, object]:
    """Seconds of each way, round by round, and what carrying takes over a copy."""
    source = directory / "source"
    source.mkdir()
    fill(source, gib)
    size = sum(file.stat().st_size for file in source.iterdir())
    (directory / "node").mkdir()
    agent = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.carrying", "--serve", str(directory / "node")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agent.stdout is not None
    ways: dict[str, list[float]] = {"copied": [], "carried": []}
    try:
        node = Node(agent.stdout.readline().strip(), KEY)
        for at in range(rounds + 1):
            acts: list[tuple[str, Callable[[], object]]] = [
                ("copied", lambda: copy(source, directory / "copy")),
                ("carried", lambda: node.send(source, transfers.entries(source))),
            ]
            for name, act in acts if at % 2 else reversed(acts):
                have_memory(2 * size)
                began = time.monotonic()
                act()
                ways[name].append(time.monotonic() - began)
            shutil.rmtree(directory / "copy")
            # A version has a name of its own: nothing has to be deleted for it.
            shutil.rmtree(directory / "node" / source.relative_to("/"))
            os.sync()
            if at == 0:  # which loads what neither end has needed before
                for times in ways.values():
                    times.clear()
                continue
            print(
                f"round {at}: copied in {ways['copied'][-1]:.2f} s, carried in {ways['carried'][-1]:.2f} s", flush=True
            )
        node.close()
    finally:
        agent.kill()
        agent.wait()
    ratios = [carried / copied for carried, copied in zip(ways["carried"], ways["copied"], strict=True)]
    return {
        "bytes": size,
        "copied_s": [round(each, 2) for each in ways["copied"]],
        "carried_s": [round(each, 2) for each in ways["carried"]],
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
    }


def fill(place: Path, gib: float) -> None:
    """Write shards of chance."""
    for shard in range(SHARDS):
        with (place / f"model-{shard}.safetensors").open("wb") as file:
            for _ in range(max(1, int(gib * 1024 / SHARDS))):
                file.write(os.urandom(2**20))


def have_memory(size: int) -> None:
    """Write to so many bytes and let go of them, by pages so large that the host is asked for whole blocks."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for _ in range(size // len(ONE_MIB)):
            memory.write(ONE_MIB)


def copy(source: Path, target: Path) -> None:
    """As anybody would, and on the disk."""
    shutil.copytree(source, target)
    for file in target.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


if __name__ == "__main__":
    sys.exit(main())
