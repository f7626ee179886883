"""What do hostile senders cost the others? A Rollyard on this machine, quiet and under attack in turn.

    python -m benchmarks.hostile_senders                              # every kind
    python -m benchmarks.hostile_senders --kind passwords --kind links --rounds 5
    python -m benchmarks.hostile_senders --list

Of every kind, `--senders` senders attack for `--seconds`, after as long a time of quiet, while an honest client stores
groups, fetches its batch and looks at the page of its run. `ratio` is the p50 of each under attack through the p50 in
the quiet before, the median of the rounds. Before that each kind is sent once in a while with nobody else about: what
one body costs the web processes in CPU and in memory at its peak.

Senders share the machine with what they attack. They run at the lowest priority, send bytes made beforehand and come
from addresses of their own; `sender_cpu_cores` says what they took. On few cores that is a part of every ratio.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.hostile_load import measuring
from benchmarks.hostile_load.attacks import KINDS
from benchmarks.hostile_load.target import BATCH_ROLLOUTS, Target
from benchmarks.wire_load import machine, servers
from benchmarks.wire_load.figures import Figures, report, spread

COLUMNS = {
    "ratio_submit": "submit x",
    "ratio_fetch": "fetch x",
    "ratio_page": "page x",
    "refused": "refused",
    "one_cpu_ms": "one: CPU ms",
    "one_mb": "one: MB",
    "grown_mb": "grown MB",
    "answers_per_s": "answers/s",
    "web_cpu_cores": "web cores",
    "sender_cpu_cores": "their cores",
}
_KIND_WIDTH, _WIDTH = 18, 13


def arguments() -> argparse.ArgumentParser:
    """Every option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="only this; repeat for more")
    parser.add_argument("--list", action="store_true", help="print the kinds")
    parser.add_argument("--senders", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="quiet and attack, so often")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each")
    parser.add_argument("--home-under", type=Path, metavar="DIRECTORY", help="where the fresh home is made")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def measure(kinds: list[str], options: argparse.Namespace) -> dict[str, list[Figures]]:
    """Kind -> the figures of its rounds."""
    overrides = [f"batch.batch_size={BATCH_ROLLOUTS}", "batch.max_queued_rollouts=100000000"]
    with servers.rollyard(overrides, options.home_under) as server:
        bench = measuring.Bench(server, Target.prepare(server))
        bench.warm_up()
        found: dict[str, list[Figures]] = {}
        print(_head(), file=sys.stderr)
        for kind in kinds:
            attack = KINDS[kind](bench.target)
            one = bench.cost_of_one(attack)
            rounds = [bench.round(attack, options.senders, options.seconds) for _ in range(options.rounds)]
            found[kind] = [{**one, **each} for each in rounds]
            print(_line(kind, found[kind]), file=sys.stderr)
        return found


def _line(kind: str, rounds: list[Figures]) -> str:
    cells = [spread([each[name] for each in rounds]).median if name in rounds[0] else None for name in COLUMNS]
    answered = sorted({name.removeprefix("answered_") for each in rounds for name in each if "answered_" in name})
    shown = "".join(("-" if cell is None else f"{cell:,.3g}").rjust(_WIDTH) for cell in cells)
    return f"{kind:{_KIND_WIDTH}}{shown}  {' '.join(answered)}"


def _head() -> str:
    return "medians".ljust(_KIND_WIDTH) + "".join(name.rjust(_WIDTH) for name in COLUMNS.values()) + "  answers"


def main() -> None:
    options = arguments().parse_args()
    if options.list:
        print("\n".join(KINDS))
        return
    found = measure(options.kind or list(KINDS), options)
    facts: dict[str, Any] = {"machine": machine.facts(), "senders": options.senders, "seconds": options.seconds}
    if options.json:
        print(json.dumps({**facts, "figures": report(found)}))
        return
    print(*(f"{key}={value}" for key, value in facts.items()), sep="\n")
    print(_head())
    print("\n".join(_line(kind, rounds) for kind, rounds in found.items()))


if __name__ == "__main__":
    main()
