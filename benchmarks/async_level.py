"""Does generation overlap with training? The same RL run with max_async_level 2 and 0, in pairs, on this machine.

    python benchmarks/async_level.py --pairs 2 --steps 30

Needs a running `rollyard up` on ROLLYARD_HOME. Prints one JSON object: seconds from the first batch formed to the last
step acknowledged for each run, medians with minimum and maximum, and the ratio. Pairs alternate in order, because
machines drift.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def rollyard(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "controlplane.cli.main", *arguments], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"rollyard {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def measure(model: Path, level: int, steps: int, extra: list[str]) -> float:
    """Seconds of the training phase of one run."""
    launched = rollyard(
        "launch",
        "reverse-text-rl",
        f"model.path={model}",
        f"max_steps={steps}",
        f"algorithm.max_async_level={level}",
        "evaluation=null",
        f"name=async-level-{level}",
        *extra,
        "--json",
    )
    run = json.loads(launched.splitlines()[0])["run"]
    rollyard("runs", "wait", run, "--quiet")
    summary = json.loads(rollyard("runs", "summary", run, "--json"))
    figures = (
        f"{summary['training_s']:.1f} s, mismatch KL {summary['mismatch_kl_mean']:.1e},"
        f" on policy {summary['mismatch_kl_on_policy']:.1e}"
    )
    print(f"max_async_level={level}: {figures} ({run})", file=sys.stderr)
    return float(summary["training_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--model", type=Path, help="a model directory; a random tiny one when left out")
    parser.add_argument("overrides", nargs="*", help="key=value for every run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = options.model or Path(directory) / "model"
        if options.model is None:
            subprocess.run([sys.executable, "-m", "trainers.model.tiny", str(model)], check=True)
        seconds: dict[int, list[float]] = {2: [], 0: []}
        for pair in range(options.pairs):
            for level in (2, 0) if pair % 2 == 0 else (0, 2):
                seconds[level].append(measure(model, level, options.steps, options.overrides))
    medians = {level: statistics.median(values) for level, values in seconds.items()}
    print(
        json.dumps(
            {
                "steps": options.steps,
                "training_s": {
                    f"max_async_level={level}": {"median": medians[level], "min": min(values), "max": max(values)}
                    for level, values in seconds.items()
                },
                "speed_up": round(medians[0] / medians[2], 3),
                "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
            }
        )
    )


if __name__ == "__main__":
    main()
