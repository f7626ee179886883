"""How many workers and replicas does one control plane take? Stub workers and stub replicas, everything else real.

python -m benchmarks.scale                            # 500 workers, 20,000 episodes in flight, 64 replicas
python -m benchmarks.scale --workers 125 250 500 1000
"""

import argparse
import json
import math
import os
import platform
import sys
import time
from collections import Counter
from typing import Any

from benchmarks.scale_load import ground
from benchmarks.scale_load.costs import costs
from benchmarks.scale_load.machine import Used, percentiles
from benchmarks.scale_load.polls import Pollers, write
from benchmarks.scale_load.programs import Program

_START_DEADLINE_S = 300.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[500], help="one size after the other")
    parser.add_argument("--episodes", type=int, default=40, help="in flight, of each worker")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--mean-s", type=float, default=120.0, help="of a group, log-normal")
    parser.add_argument("--turns", type=int, default=10, help="of an episode")
    parser.add_argument("--tokens", type=int, default=2000, help="of a rollout, in the mean")
    parser.add_argument("--sampled", type=int, default=1200, help="of these by the policy")
    parser.add_argument("--batch-size", type=int, default=2048, help="rollouts of a step")
    parser.add_argument("--spare", type=int, default=4, help="batches that may be ahead beyond what is in flight")
    parser.add_argument("--lease-s", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=4, help="that the stub workers share")
    parser.add_argument("--ramp-s", type=float, default=20.0)
    parser.add_argument("--warmup", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--costs", action="store_true", help="what one call costs, instead of the load of all")
    parser.add_argument("--step-s", type=float, default=0.0, help="that the trainer waits between two steps")
    parser.add_argument("--look-s", type=float, default=1.0)
    parser.add_argument("--report-s", type=float, default=0.0, help="0: as a driver among so many does")
    parser.add_argument("--pause-s", type=float, default=0.0, help="after a vain claim; 0: as --report-s")
    parser.add_argument("--vain-per-s", type=float, default=0.0, help="vain claims beside those, of all workers")
    return parser


def main() -> int:
    options = _parser().parse_args()
    for workers in options.workers:
        report = measure(workers, options)
        print(json.dumps(report))
        sys.stdout.flush()
    return 0


def measure(workers: int, options: argparse.Namespace) -> dict[str, Any]:
    """One size, on a ground of its own."""
    slots = options.episodes // options.group_size
    in_flight = workers * slots * options.group_size
    ahead = max(1, -(-in_flight // options.batch_size) + options.spare)
    with ground.opened((2 if options.vain_per_s else 1) * workers + 16 * options.processes + 100) as stands:
        from django.conf import settings
        from django.db import connection

        run = ground.begin_run(
            stands.root,
            {
                "max_steps": 100_000,
                "inference.replicas": options.replicas,
                "inference.max_model_len": 32_768,
                "sampling.group_size": options.group_size,
                "batch.batch_size": options.batch_size,
                "algorithm.max_async_level": ahead,
                "algorithm.max_off_policy_steps": 2 * ahead,
                "workers.concurrency": slots,
                "workers.lease_s": options.lease_s,
            },
        )
        programs = [Program("plane")]
        try:
            began = time.monotonic()
            _wait_for_replicas(run, options.replicas)
            started_s = time.monotonic() - began
            if options.costs:
                polls = write(stands.root, run, slots=slots, answers=0.5)
                return {"workers": workers, "costs": costs(run, polls, stands.postgres, workers, options)}
            programs += [Program("trainer", run.key, str(options.step_s)), Program("ears", run.key, str(workers))]
            report_s = options.report_s or min(20.0, max(2.0, workers / 50))
            programs += _crowd(run.key, workers, slots, report_s, options)
            seconds = options.ramp_s + options.warmup + options.seconds + 5
            answers = 1 - math.exp(-options.group_size * options.turns / options.mean_s)
            polls = write(stands.root, run, slots=slots, answers=answers)
            connection.close()
            often = {"clients": workers, "seconds": seconds, "directory": stands.root}
            per_s = workers / options.look_s + workers / report_s
            weights = {polls.look: round(100 * report_s), polls.report: round(100 * options.look_s)}
            pollers = [Pollers("polls", weights, per_s=per_s, **often)]
            if options.vain_per_s:
                pollers += [Pollers("vain", {polls.vain: 1}, per_s=options.vain_per_s, **often)]
            parts = {"postgres": stands.postgres, "redis": stands.redis}
            parts |= {f"{each.name}{at}": each.process.pid for at, each in enumerate(programs)}
            parts |= {each.name: each.process.pid for each in pollers}
            time.sleep(options.ramp_s + options.warmup)
            for program in programs:
                program.ask("told")
            urls = (settings.HOME.owner_database_url, settings.HOME.redis_url)
            since, before = time.time(), Used.now(parts, *urls)
            time.sleep(options.seconds)
            after, until = Used.now(parts, *urls), time.time()
            told = [(program.name, program.ask("told")) for program in programs]
            from rollouts.models import Lease, ScoredGroup

            held = Lease.objects.filter(run=run).count() * options.group_size
            states = Counter(ScoredGroup.objects.filter(run=run).values_list("state", flat=True))
            connection.close()
            polled = {name: values for each in pollers for name, values in each.finish(since, until).items()}
        finally:
            for program in reversed(programs):
                program.end()
    used = before.until(after)
    return {
        "workers": workers,
        "episodes_wanted": in_flight,
        "episodes_leased": held,
        "groups": dict(states),
        "replicas_started_s": round(started_s, 1),
        **{key: round(value, 3) for key, value in used.items()},
        **_told(told, used["seconds"]),
        **{name: _figures(values, used["seconds"]) for name, values in polled.items()},
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def _crowd(run: str, workers: int, slots: int, report_s: float, options: argparse.Namespace) -> list[Program]:
    found, share = [], -(-workers // options.processes)
    words = ["--slots", str(slots), "--group-size", str(options.group_size), "--mean-s", str(options.mean_s)]
    words += ["--ramp-s", str(options.ramp_s), "--tokens", str(options.tokens), "--sampled", str(options.sampled)]
    words += ["--report-s", str(report_s), "--pause-s", str(options.pause_s or workers / 20)]
    words += ["--turns", str(options.turns), "--seed", str(options.seed)]
    for first in range(0, workers, share):
        count = min(share, workers - first)
        found.append(Program("work", run, "--first", str(first), "--workers", str(count), *words))
    return found


def _wait_for_replicas(run: Any, wanted: int) -> None:
    from rollouts.selectors import fleet

    give_up_at = time.monotonic() + _START_DEADLINE_S
    while fleet.list_serving(run).count() < wanted:
        if time.monotonic() > give_up_at:
            raise SystemExit(f"not all of {wanted} replicas serve: what the reconciler said is above")
        time.sleep(0.2)


def _told(told: list[tuple[str, Any]], wall: float) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {}
    counts: Counter[str] = Counter()
    found: dict[str, Any] = {}
    for name, each in told:
        if name == "work":
            for kind, values in each["seconds"].items():
                seconds.setdefault(kind, []).extend(values)
            counts.update(each["counts"])
        elif name == "plane":
            found["pass_ms"] = _milliseconds(each["pass_s"])
            found["pass_period_ms"] = _milliseconds(each["period_s"])
        elif name == "trainer":
            found["batch_ms"] = _milliseconds(each["batch_s"])
            found["batches"] = len(each["batch_s"])
            found["batch_mb"] = round(sum(each["batch_bytes"]) / max(1, len(each["batch_bytes"])) / 1e6, 1)
        else:
            found["bell_kb_per_s"] = round(each["heard_bytes"] / wall / 1000, 1)
    found |= {kind: _figures(values, wall) for kind, values in sorted(seconds.items())}
    return {**found, "counts_per_s": {name: round(count / wall, 2) for name, count in counts.items()}}


def _figures(seconds: list[float], wall: float) -> dict[str, float]:
    return {"per_s": round(len(seconds) / wall, 2), **_milliseconds(seconds)}


def _milliseconds(seconds: list[float]) -> dict[str, float]:
    return {name: round(1000 * value, 1) for name, value in percentiles(seconds).items()}


if __name__ == "__main__":
    sys.exit(main())
