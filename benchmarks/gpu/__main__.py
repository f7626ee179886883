"""Everything that needs a GPU, in one go and into one JSON report: `python -m benchmarks.gpu [PIECE ...]`, `make gpu`.

Each piece runs in a process of its own with a deadline of its own. One that fails, or takes too long, or needs what is
not installed, is in the report as that, and the others go on. The report is written after every piece; one that is
there already, of the same commit and machine, is added to, so pieces may be run a few at a time. The exit status is 1
when a piece failed or was late. Without a GPU there is nothing to do, and the status is 0.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import PIECES, Piece
from benchmarks.gpu.runner import ROOT, Outcome, command_of, run
from environments.disk import write_file
from workers.fleet import accelerators

_FACTS_S = 180.0
_LEAST_S = 20.0
"""With less than this left of the budget no piece is begun."""


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    names = [piece.name for piece in PIECES]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=f"all without any: {', '.join(names)}")
    parser.add_argument("--out", type=Path, default=Path("test-results/gpu.json"), help="the report")
    parser.add_argument("--budget-s", type=float, default=2400.0, help="seconds for all pieces together")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try the pieces themselves")
    parser.add_argument("--small", action="store_true", help="the smallest sizes: figures that mean nothing")
    parser.add_argument("--commit", help="what is measured, where that is no checkout of git")
    return parser


def main() -> int:
    """Run the pieces that were asked for; returns the exit status."""
    parser = arguments()
    options = parser.parse_args()
    known = {piece.name: piece for piece in PIECES}
    if unknown := [name for name in options.pieces if name not in known]:
        parser.error(f"no such piece: {', '.join(unknown)}. There are {', '.join(known)}.")
    if options.device == "cuda" and not accelerators.list_gpus():
        print("No GPU on this machine: nothing is run. (CUDA_VISIBLE_DEVICES may hide one.)")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rollyard-gpu-", ignore_cleanup_errors=True) as directory:
        work = Path(directory)
        work.chmod(0o711)  # the demo's PostgreSQL runs under another account when we are root
        machine = run(command_of("facts", []), work / "facts.log", _FACTS_S)
        if machine.status != "ok":
            print(f"The machine could not be looked at ({machine.reason}):\n{machine.output_tail}")
            return 1
        if options.device == "cuda" and "gpu" not in machine.figures:
            torch = machine.figures["packages"].get("torch")
            print(f"There is a GPU, but torch {torch} cannot use it: install PyTorch's build for CUDA, or its driver.")
            return 1
        report = _open_report(options, machine.figures)
        for name in options.pieces or known:
            left_s = options.budget_s - (time.monotonic() - began)
            outcome = _outcome(known[name], options, work, left_s)
            _say(name, outcome)
            report["pieces"][name] = {key: value for key, value in asdict(outcome).items() if value}
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_file(options.out, json.dumps(report, indent=1).encode())
    print(f"{options.out}: {len(report['pieces'])} of {len(PIECES)} pieces")
    return int(any(report["pieces"][name]["status"] in {"failed", "late"} for name in options.pieces or known))


def _outcome(piece: Piece, options: argparse.Namespace, work: Path, left_s: float) -> Outcome:
    if missing := piece.missing(options.device):
        return Outcome("skipped", reason=f"needs {', '.join(missing)}")
    if left_s < _LEAST_S:
        return Outcome("skipped", reason=f"the budget of {options.budget_s:.0f} s is spent")
    words = [*piece.words, f"--device={options.device}", f"--work={work}", *(["--small"] if options.small else [])]
    return run(command_of(piece.module, words), work / f"{piece.name}.log", min(piece.deadline_s, left_s))


def _open_report(options: argparse.Namespace, machine: dict[str, Any]) -> dict[str, Any]:
    """The report that is there when it is of the same commit, GPU and sizes; else a new one."""
    report: dict[str, Any] = {
        "commit": options.commit or _commit(),
        "device": options.device,
        "small": options.small,
        "machine": machine,
        "pieces": {},
    }
    try:
        earlier = json.loads(options.out.read_text())
        same = all(earlier[key] == report[key] for key in ("commit", "device", "small"))
        if same and earlier["machine"].get("gpu") == machine.get("gpu"):
            report["pieces"] = dict(earlier["pieces"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # none, or of another kind: it is written anew
    return report


def _commit() -> str:
    """Of the checkout, `+` behind it when there are changes; `unknown` without git."""
    try:
        git = ["git", "-C", str(ROOT)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=30, check=True)
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout else "")


def _say(name: str, outcome: Outcome) -> None:
    shown = ", ".join(f"{key} {value:,.4g}" for key, value in outcome.figures.items() if isinstance(value, int | float))
    print(": ".join(filter(None, [f"{name:18} {outcome.status} {outcome.seconds:.0f} s", outcome.reason, shown])))
    if outcome.output_tail:
        print(outcome.output_tail, file=sys.stderr)
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that the piece under way is ended too
    sys.exit(main())
