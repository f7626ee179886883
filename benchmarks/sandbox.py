"""What do sandboxes cost? The same run with them and without, in turn: starts, step time, tokens a second.

    python -m benchmarks.sandbox --pairs 3 --steps 20

Each round is a Rollyard of its own in an empty home, where a first run fills the caches. Without sandboxes nothing of a
run starts under root, so this takes an account that is not root. Starts are from the row of a replica, made just before
its process, to the moment that it works: the server answers, the trainer is registered. Steps are counted after the
first three.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psycopg

from benchmarks.wire_load import servers
from benchmarks.wire_load.servers import Server
from environments import unconfined

SIDES = ("sandboxed", "bare")
WARM_UP_STEPS = 3
DEADLINE_S = 600.0
_STARTS = """
    SELECT p.kind, extract(epoch FROM min(e.at) - p.created_at)::float
    FROM rollouts_replica p JOIN rollouts_event e ON e.object_kind = 'replica' AND e.object_id = p.id
    JOIN rollouts_run r ON r.id = p.run_id
    WHERE r.key = %s AND e.to_state = 'ready' GROUP BY p.id
"""
_METRIC = """
    SELECT m.value FROM rollouts_metricpoint m JOIN rollouts_run r ON r.id = m.run_id
    WHERE r.key = %s AND m.key = %s AND m.step >= %s ORDER BY m.step
"""


def arguments() -> argparse.ArgumentParser:
    """Every option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48, help="most tokens of a completion")
    return parser


def main() -> None:
    """Measure and print a table."""
    asked = arguments().parse_args()
    if os.geteuid() == 0:
        raise SystemExit("Run this as an account that is not root: root starts nothing without a sandbox.")
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="rollyard-bench-") as directory:
        model = Path(directory) / "model"
        subprocess.run([sys.executable, "-m", "trainers.model.tiny", str(model)], check=True, capture_output=True)
        for pair in range(asked.pairs):
            for side in SIDES if pair % 2 == 0 else SIDES[::-1]:
                with _sandboxes(side == "sandboxed"), servers.rollyard([]) as server:
                    measure(server, model, 1, asked.tokens)
                    rounds[side].append(measure(server, model, asked.steps, asked.tokens))
                print(f"pair {pair + 1} {side}: {rounds[side][-1]}", flush=True)
    print(f"{'median':<20}" + "".join(f"{side:>12}" for side in SIDES) + "   of pairs: median (min to max)")
    for name in rounds[SIDES[0]][0]:
        ours, bare = ([figures[name] for figures in rounds[side]] for side in SIDES)
        is_start = name.endswith("start, s")
        compared = [one - other if is_start else one / other for one, other in zip(ours, bare, strict=True)]
        spread = f"{median(compared):.3f} ({min(compared):.3f} to {max(compared):.3f})"
        print(f"{name:<20}{median(ours):>12.3f}{median(bare):>12.3f}   {spread}{' s more' if is_start else ' x'}")


def measure(server: Server, model: Path, steps: int, tokens: int) -> dict[str, float]:
    """One run to its end."""
    words = [f"model.path={model}", f"max_steps={steps + WARM_UP_STEPS}", f"sampling.max_tokens={tokens}"]
    words += ["optimizer.warmup_steps=1", "inference.kv_cache_gib=0.2", "evaluation=null"]
    run = server.command("launch", "reverse-text-rl", *words)["run"]
    give_up_at = time.monotonic() + DEADLINE_S
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        while True:
            [(state,)] = connection.execute("SELECT state FROM rollouts_run WHERE key = %s", [run]).fetchall()
            if state == "finished":
                break
            if state in {"failed", "stopped"} or time.monotonic() > give_up_at:
                raise SystemExit(f"run {run} is {state}")
            time.sleep(0.2)
        starts = dict(connection.execute(_STARTS, [run]).fetchall())

        def of(key: str) -> float:
            return median(value for (value,) in connection.execute(_METRIC, [run, key, WARM_UP_STEPS]).fetchall())

        return {
            "vLLM: start, s": starts["inference"],
            "trainer: start, s": starts["trainer"],
            "step, s": of("time/step"),
            "trainer, tokens/s": of("perf/throughput"),
        }


@contextmanager
def _sandboxes(are_on: bool) -> Iterator[None]:
    if not are_on:
        os.environ[unconfined.VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(unconfined.VARIABLE, None)


if __name__ == "__main__":
    main()
