"""What does a sandbox cost the trainer? A process inside one and a process outside of one, in turns.

    python -m benchmarks.sandbox_steps --steps 100 --starts 20

Both train on the same batches, each step of the one after the same step of the other, while the other waits: what the
machine does in between hits both. Then both start a Python that imports torch, in turns. For whole runs, vLLM's start
included, there is `benchmarks.sandbox`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import CompletedProcess

from benchmarks.trainer_load.work import add_options, write_work
from workers.launchers import confinement

SIDES = ("sandboxed", "bare")
WARM_UP_STEPS = 3
TRAIN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "-m", "benchmarks.trainer_load.ours"]
READY_S = 45.0
"""From the start of both processes to their first step."""


def arguments() -> argparse.ArgumentParser:
    """Every option; with these sizes a step takes a third of a second on one core."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="counted, of each side")
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="of which a side has the half")
    parser.add_argument("--starts", type=int, default=20, help="counted, of each side")
    add_options(parser.add_argument_group("sizes").add_argument)
    parser.set_defaults(rollouts=4, group_size=4, completion=64, width=128, layers=4, spread=0.0)
    return parser


def main() -> None:
    """Measure and print."""
    asked = arguments().parse_args()
    asked.kind, asked.device, asked.dtype, asked.warmup = "rl", "cpu", "float32", WARM_UP_STEPS
    with tempfile.TemporaryDirectory(prefix="rollyard-bench-") as place:
        sides = {side: Path(place) / side for side in SIDES}
        for directory in sides.values():
            directory.mkdir()
            write_work(directory / "work", asked)
        starts = {side: partial(_run, directory, side) for side, directory in sides.items()}
        steps = _steps(sides, starts, asked)
        imports = {side: [] for side in SIDES}
        for turn in range(asked.starts + 1):
            for side in SIDES if turn % 2 else SIDES[::-1]:
                began = time.monotonic()
                starts[side](["-c", "import torch"])
                imports[side].append(time.monotonic() - began)
    inside, outside = (steps[side][WARM_UP_STEPS:] for side in SIDES)
    print(_line("step, ms", [1000 * each for each in inside], [1000 * each for each in outside], "x"))
    inside, outside = (imports[side][1:] for side in SIDES)
    print(_line("start, ms", [1000 * each for each in inside], [1000 * each for each in outside], "more"))


def _run(directory: Path, side: str, words: Sequence[str]) -> "CompletedProcess[str]":
    """Start a Python on one of the sides, to its end. Ends the benchmark if it fails."""
    scratch = directory / "scratch"
    scratch.mkdir(exist_ok=True)
    ours = Path(__file__).parent
    room = confinement.make(scratch, reads=[directory / "work", ours], ours=[directory]) if side == SIDES[0] else None
    environ = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ours.parent)}
    done = confinement.run(room, [sys.executable, *words], scratch, timeout_s=3600, environ=environ)
    if done.returncode:
        raise SystemExit(f"{side}: {done.stdout}{done.stderr}")
    return done


def _steps(
    sides: dict[str, Path],
    starts: dict[str, Callable[[Sequence[str]], "CompletedProcess[str]"]],
    asked: argparse.Namespace,
) -> dict[str, list[float]]:
    """Seconds of every step of each side, by its number."""
    first = time.time() + READY_S
    for offset, directory in enumerate(sides.values()):
        work = json.loads((directory / "work" / "work.json").read_text())
        begins = [first + asked.every * (step + offset / 2) for step in range(len(work["steps"]))]
        (directory / "work" / "work.json").write_text(json.dumps(work | {"begins": begins}))
    with ThreadPoolExecutor() as both:
        done = {side: both.submit(starts[side], [*TRAIN, str(sides[side] / "work")]) for side in sides}
    return {side: json.loads(each.result().stdout.splitlines()[-2]) for side, each in done.items()}


def _line(what: str, inside: list[float], outside: list[float], word: str) -> str:
    compared = [one / other if word == "x" else one - other for one, other in zip(inside, outside, strict=True)]
    ordered = sorted(compared)
    quarter = len(ordered) // 4
    return (
        f"{what:<10} sandboxed {median(inside):8.1f}, bare {median(outside):8.1f}, of {len(inside)} pairs"
        f" {median(ordered):.3f} {word} (half of them {ordered[quarter]:.3f} to {ordered[-quarter - 1]:.3f})"
    )


if __name__ == "__main__":
    main()
