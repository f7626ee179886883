"""Two kinds of a run beside each other: pairs that alternate in order, because machines drift."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any


def rollyard(*arguments: str) -> str:
    """What a command prints. Ends the program when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "controlplane.cli.main", *arguments], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"rollyard {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def parser(about: str, *, pairs: int, steps: int) -> argparse.ArgumentParser:
    """Of a benchmark of pairs, with its defaults."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--pairs", type=int, default=pairs)
    made.add_argument("--steps", type=int, default=steps)
    made.add_argument("--model", default="tiny-qwen3", help="name or directory; by default one with random weights")
    made.add_argument("overrides", nargs="*", help="key=value for every run")
    return made


def measure(options: argparse.Namespace, kinds: dict[str, Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    """Play the demo's RL run with the overrides of each of two kinds, in pairs: kind -> the summaries of its runs.

    To a summary is added `run_s`, the seconds from the launch to the end.
    """
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for pair in range(options.pairs):
        for kind in list(kinds) if pair % 2 == 0 else reversed(list(kinds)):
            words = [f"model.path={options.model}", f"max_steps={options.steps}", *kinds[kind], *options.overrides]
            began = time.monotonic()
            run = json.loads(rollyard("launch", "reverse-text-rl", *words, "--json").splitlines()[0])["run"]
            rollyard("runs", "wait", run, "--quiet")
            took_s = time.monotonic() - began
            summary = json.loads(rollyard("runs", "summary", run, "--json")) | {"run_s": took_s}
            found[kind].append(summary)
            print(f"{kind}: {took_s:.1f} s, training {summary['training_s']:.1f} s ({run})", file=sys.stderr)
    return found


def compared(found: dict[str, list[dict[str, Any]]], figure: str) -> dict[str, Any]:
    """Median, minimum and maximum of a figure for each kind, and the second's median over the first's."""
    values = {kind: [summary[figure] for summary in of] for kind, of in found.items()}
    first, second = (statistics.median(of) for of in values.values())
    spread = {
        kind: {"median": round(statistics.median(of), 1), "min": round(min(of), 1), "max": round(max(of), 1)}
        for kind, of in values.items()
    }
    return spread | {"ratio": round(second / first, 3)}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"cpus": os.cpu_count(), "platform": platform.platform()}
