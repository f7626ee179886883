"""How many tokens a second does the trainer train? Ours, or ours beside another trainer in turn, on made-up rollouts.

    python -m benchmarks.trainer --kind sft --width 512 --layers 8
    python -m benchmarks.trainer --pairs 5 --other-command '/venv/bin/python -m benchmarks.trl_grpo {work}'

Nothing is generated and nothing is served: batches are made beforehand, and only steps are measured, from the batch in
memory to the updated weights. Ours are those of the real trainer (`trainers/learner.py`). Trained tokens are completion
tokens, which have a loss; tokens are these and their prompts; padding is neither. Memory on CPU is that of the process.

The other command finds everything in the directory {work}, see `trainer_load/work.py`, and prints its figures as one
JSON object on its last line. Both sides get the same OMP_NUM_THREADS. Every round is a process of its own, rounds of a
pair follow each other, and pairs alternate in order, because machines drift. `first_grad_norm` says whether both sides
did the same work: of the first step, before clipping.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.trainer_load.work import add_options, write_work
from benchmarks.wire_load import machine
from benchmarks.wire_load.figures import Figures, report, table


def arguments() -> argparse.ArgumentParser:
    """Every option; sizes are those of the figures in the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument_group("trainers").add_argument
    add("--kind", choices=["rl", "sft"], default="rl")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="run config of ours; repeat for more")
    add("--other-command", metavar="COMMAND", help="another trainer; {work} is replaced by a directory")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--dtype", choices=["float32", "bfloat16"], default="float32")
    add("--world-size", type=int, default=1, help="processes of ours")
    half = max(1, (os.cpu_count() or 1) // 2)
    add("--threads", type=int, default=half, help="of each process on CPU; as the trainer does, half of the cores")
    add = parser.add_argument_group("measurement").add_argument
    add("--pairs", type=int, default=1, help="rounds of each trainer")
    add("--steps", type=int, default=5, help="counted in a round")
    add("--warmup", type=int, default=1, metavar="STEPS", help="before these")
    add_options(parser.add_argument_group("sizes").add_argument)
    return parser


def run(command: list[str], threads: int) -> Figures:
    """The figures on the last line of a command's output. Ends the benchmark with the output if it fails."""
    environ = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    options = arguments().parse_args()
    with tempfile.TemporaryDirectory() as directory:
        write_work(Path(directory), options)
        ours = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.world_size}"]
        commands = {"ours": [*ours, "-m", "benchmarks.trainer_load.ours", directory, *options.set]}
        if options.other_command:
            commands["other"] = shlex.split(options.other_command.replace("{work}", directory))
        rounds: dict[str, list[Figures]] = {name: [] for name in commands}
        facts: dict[str, Any] = {"machine": machine.facts()}
        for pair in range(options.pairs):
            for name in list(commands) if pair % 2 == 0 else reversed(commands):
                figures = run(commands[name], options.threads)
                rounds[name].append(figures)
                shown = ", ".join(f"{key} {value:,.4g}" for key, value in figures.items())
                print(f"pair {pair + 1} of {options.pairs}, {name}: {shown}", file=sys.stderr)
    found = report(rounds)
    print("\n".join(table(found)))
    asked = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    print(json.dumps({"options": asked, **facts, "figures": found}))


if __name__ == "__main__":
    main()
