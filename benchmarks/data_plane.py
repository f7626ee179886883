"""How fast are groups taken in and batches given out? One server, or two in turn, over the wire, on this machine.

    python benchmarks/data_plane.py --ours up --workload submit-json
    python benchmarks/data_plane.py --ours up --other-command '/venv/bin/run-api --port {port}' --pairs 5 \\
        --workload batch-atropos --queue 100

    submit-json    POST /scored_data of the Atropos protocol (--gzip, --no-logprobs, --list)
    submit-native  MessagePack to Rollyard's own API (--list); single POST /scored_data to a server without it
    batch-atropos  GET /batch on a queue of --queue groups (--identity, --minimum-allocation)
    batch-native   the batches of Rollyard's own API, fetched, fetched again, acknowledged
    memory         memory and disk that --memory-groups queued groups take (--native)

Every round has a server of its own, which starts empty and ends afterwards; rounds of a pair follow each other, and
pairs alternate in order, because machines drift. A latency is the time from the first byte sent to the last byte
received. Bodies are made beforehand, and a client writes only a number into each, so that no two groups are equal; it
neither builds JSON nor decodes an answer while the clock runs. `client_cpu_cores` says what the clients used: with as
many cores as there are clients, they are what was measured. `rest_of_machine_cpu_cores` is everybody else's.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.wire_load import machine, servers
from benchmarks.wire_load.figures import Figures, report, table
from benchmarks.wire_load.servers import Server
from benchmarks.wire_load.workloads import WORKLOADS

Side = Callable[[], AbstractContextManager[Server]]


def arguments() -> argparse.ArgumentParser:
    """Every option; sizes are those of the figures in the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument_group("servers").add_argument
    add("--ours", choices=["up"], help="start a Rollyard on a fresh home")
    add("--other-command", metavar="COMMAND", help="start another server of the Atropos protocol; {port} is replaced")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="run config of ours; repeat for more")
    add("--home-under", type=Path, metavar="DIRECTORY", help="where the fresh home is made: the disk of the database")
    add("--url", help="a server that runs: the base URL of its Atropos endpoints. Nothing of it is reset")
    add("--native-url", help="a Rollyard that runs, with --run and --token")
    add("--run", default="", metavar="KEY")
    add("--token", default="", help="of scopes submit, train and read")
    add("--pid", type=int, help="top process of a server that runs, for its memory and CPU")
    add = parser.add_argument_group("measurement").add_argument
    add("--workload", choices=sorted(WORKLOADS), required=True)
    add("--pairs", type=int, default=1, help="rounds of each server")
    add("--json", action="store_true", help="print one JSON object instead of a table")
    add("--timeout", type=float, default=120.0, metavar="SECONDS", help="for one answer")
    add = parser.add_argument_group("sizes").add_argument
    add("--group-size", type=int, default=8)
    add("--tokens", type=int, default=1000, help="per rollout, for submissions and batch-atropos")
    add("--clients", type=int, default=8)
    add("--seconds", type=float, default=10.0, help="measured after the warm-up")
    add("--warmup", type=float, default=2.0, metavar="SECONDS")
    add("--groups", type=int, help="submit so many groups, warm-up included, instead of for a time")
    add("--list", type=int, default=1, help="groups per request")
    add("--gzip", action="store_true", help="compress the bodies of submit-json")
    add("--no-logprobs", dest="logprobs", action="store_false")
    add("--queue", type=int, default=100, help="groups that wait in batch-atropos")
    add("--other-queue", type=int, help="the same for the other server, whose memory may not hold as many")
    add("--batch-size", type=int, default=64, help="sequences in a batch of batch-atropos")
    add("--batches", type=int, default=10, help="fetched at most")
    add("--identity", action="store_true", help="ask for batches without compression")
    add("--minimum-allocation", action="store_true", help="two environments with a quarter of every batch each")
    add("--native-batch-size", type=int, default=256, help="rollouts in a batch of batch-native")
    add("--native-batches", type=int, default=30, help="fetched in batch-native")
    add("--native-tokens", type=int, default=2048, help="per rollout in batch-native")
    add("--memory-groups", type=int, default=100_000)
    add("--other-memory-groups", type=int, default=2000, help="the same for the other server; 0: as many")
    add("--memory-tokens", type=int, default=256, help="per rollout in memory")
    add("--native", action="store_true", help="submit over the native API in memory, where there is one")
    return parser


def sides(options: argparse.Namespace) -> dict[str, Side]:
    """The servers that were asked for, ours first, by the name they have in the result."""
    found: dict[str, Side] = {}
    overrides = [*WORKLOADS[options.workload].overrides(options), *options.set]
    if options.ours:
        found["ours"] = lambda: servers.rollyard(overrides, options.home_under)
    if options.url or options.native_url:
        there = servers.running(options.url, options.native_url, options.run, options.token, options.pid)
        found["running"] = lambda: contextlib.nullcontext(there)
    if options.other_command:
        found["other"] = lambda: servers.other(options.other_command)
    if options.gzip and options.list > 1:
        raise SystemExit("--gzip and --list exclude each other")
    if not 0 < len(found) <= 2:
        raise SystemExit("name one or two servers: --ours up, --url or --native-url, --other-command")
    return found


def main() -> None:
    options = arguments().parse_args()
    chosen = sides(options)
    rounds: dict[str, list[Figures]] = {name: [] for name in chosen}
    facts: dict[str, Any] = {"machine": machine.facts()}
    for pair in range(options.pairs):
        for name in list(chosen) if pair % 2 == 0 else reversed(chosen):
            with chosen[name]() as server:
                facts.setdefault("database", {}).update(server.facts())
                figures = WORKLOADS[options.workload].run(server, options)
            rounds[name].append(figures)
            shown = ", ".join(f"{key} {value:,.4g}" for key, value in list(figures.items())[:5])
            print(f"pair {pair + 1} of {options.pairs}, {name}: {shown}", file=sys.stderr)
    found = report(rounds)
    if options.json:
        asked = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        print(json.dumps({"workload": options.workload, "options": {**asked, "token": ""}, **facts, "figures": found}))
        return
    print(options.workload, *(f"{key}={value}" for part in facts.values() for key, value in part.items()), sep="\n  ")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
