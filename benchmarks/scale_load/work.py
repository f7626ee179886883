"""Stub workers, many in one process: claim, renew and settle as a worker does, and wait where it would play.

    python -m benchmarks.scale_load.work RUN --first 0 --workers 125 --slots 5

Each has a holder, leases and a clock of its own; the calls are the services' own, with the payload of a real group.
They share the threads and the connections of their process, as many as that of one worker has.
"""

import argparse
import heapq
import itertools
import math
import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import django

from benchmarks.scale_load.programs import answer

CLAIMING_THREADS = 4
"""Claims of a run wait for each other: they must not keep renewals and settles from their threads."""
THREADS = 8
"""For all else; with those a process has fewer than connections, of which the bell takes one."""
SPREAD = 0.6
"""Of the logarithm of the seconds of a group."""
AGAIN_S = 1.0
VARIANTS = 8


@dataclass
class StubWorker:
    """One worker, as the store sees it."""

    number: int
    chance: random.Random
    claims: dict[str, Any] = field(default_factory=dict)
    """By lease token."""
    settled: dict[int, int] = field(default_factory=dict)
    """Policy version -> rollouts that were not reported yet."""

    @property
    def holder(self) -> str:
        return f"stub-{self.number}:1"


class Calls:
    """What calls took, by kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.counts: defaultdict[str, int] = defaultdict(int)

    def took(self, kind: str, seconds: float) -> None:
        """From when it was due."""
        with self._lock:
            self.seconds[kind].append(seconds)

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    def told(self) -> dict[str, Any]:
        """Since the last time this was asked."""
        with self._lock:
            found = {"seconds": dict(self.seconds), "counts": dict(self.counts)}
            self._forget()
        return found


class Crowd:
    """The workers of this process."""

    def __init__(self, run: Any, options: argparse.Namespace) -> None:
        self._run = run
        self._options = options
        self._config = run.parsed
        self._order = itertools.count()
        self._due: list[tuple[float, int, str, StubWorker, Any]] = []
        self._lock = threading.Condition()
        self._payloads = [payload(options, f"{options.seed}:{at}") for at in range(VARIANTS)]
        self.calls = Calls()
        now = time.monotonic()
        for number in range(options.first, options.first + options.workers):
            worker = StubWorker(number, random.Random(f"{options.seed}:{number}"))
            begins = now + options.ramp_s * worker.chance.random()
            self._at(begins, "first", worker)
            self._at(begins + self._config.workers.lease_s / 6, "renew", worker)

    def work(self, ending: threading.Event) -> None:
        """Do what is due, until told to end."""
        with ThreadPoolExecutor(CLAIMING_THREADS) as claiming, ThreadPoolExecutor(THREADS) as others:
            while not ending.is_set():
                with self._lock:
                    now = time.monotonic()
                    if not self._due or self._due[0][0] > now:
                        self._lock.wait(min(0.5, self._due[0][0] - now) if self._due else 0.5)
                        continue
                    due = heapq.heappop(self._due)
                (claiming if due[2] in {"first", "claim"} else others).submit(self._do, *due)
            claiming.shutdown(wait=False, cancel_futures=True)
            others.shutdown(wait=False, cancel_futures=True)

    def _at(self, due: float, kind: str, worker: StubWorker, what: Any = None) -> None:
        with self._lock:
            heapq.heappush(self._due, (due, next(self._order), kind, worker, what))
            self._lock.notify()

    def _do(self, due: float, _order: int, kind: str, worker: StubWorker, what: Any) -> None:
        from workers.database import with_connection

        act = {"first": self._claim, "claim": self._claim, "renew": self._renew, "settle": self._settle}
        act["count"] = self._report
        try:
            with_connection(act[kind], worker, *([kind == "first"] if act[kind] == self._claim else [what]))
        except Exception as error:  # noqa: BLE001 - what breaks is what is measured
            self.calls.count(f"{kind}: {type(error).__name__}: {error}"[:120])
            self._at(time.monotonic() + AGAIN_S, kind, worker, what)
        self.calls.took("claim" if kind == "first" else kind, time.monotonic() - due)

    def _claim(self, worker: StubWorker, is_first: bool) -> None:
        from rollouts.services.groups import leases

        wanted = self._options.slots - len(worker.claims)
        if wanted <= 0:
            return
        answered = leases.claim(
            self._run,
            holder=worker.holder,
            limit=wanted,
            lease_s=self._config.workers.lease_s,
            rooms={ref.run_name: wanted for ref in self._config.environments},
        )
        now = time.monotonic()
        for claim in answered.claims:
            worker.claims[claim.token] = claim
            takes = worker.chance.lognormvariate(math.log(self._options.mean_s) - SPREAD**2 / 2, SPREAD)
            self._at(now + takes * (worker.chance.random() if is_first else 1.0), "settle", worker, claim)
        self.calls.count("claimed", len(answered.claims))
        if len(answered.claims) < wanted:
            self.calls.count("short claims")
            self._at(now + worker.chance.uniform(0, 2) * self._options.pause_s, "claim", worker)

    def _renew(self, worker: StubWorker, _nothing: Any) -> None:
        from rollouts.services.groups import leases

        lease_s = self._config.workers.lease_s
        self._at(time.monotonic() + lease_s / 6, "renew", worker)
        tokens = set(worker.claims)
        if not tokens:
            return
        held = {str(token) for token in leases.renew(tokens, lease_s=lease_s)}
        self.calls.count("renewed", len(held))
        for token in tokens - held:
            if worker.claims.pop(token, None) is not None:
                self.calls.count("lost leases")
                self._at(time.monotonic(), "claim", worker)

    def _settle(self, worker: StubWorker, claim: Any) -> None:
        from rollouts.errors import LeaseLost
        from rollouts.services.groups import settling

        if worker.claims.pop(claim.token, None) is None:
            return
        rollouts = [copy(rollout) for rollout in self._payloads[worker.chance.randrange(VARIANTS)]]
        for rollout in rollouts:
            rollout.reward = float(worker.chance.random() < 0.5)
            rollout.dispatch_policy_version = rollout.first_policy_version = claim.policy_version
            rollout.last_policy_version = claim.policy_version
        try:
            settling.settle(
                token=claim.token,
                problem_key=f"problem-{claim.problem_index}",
                rollouts=rollouts,
                worker=worker.holder,
                environment_version="1",
            )
        except LeaseLost:
            self.calls.count("lost leases")
        except Exception:
            worker.claims[claim.token] = claim
            raise
        else:
            self.calls.count("settled")
            if not worker.settled:
                self._at(time.monotonic() + self._options.report_s, "count", worker)
            worker.settled[claim.policy_version] = worker.settled.get(claim.policy_version, 0) + len(rollouts)
        self._at(time.monotonic(), "claim", worker)

    def _report(self, worker: StubWorker, _nothing: Any) -> None:
        from rollouts.services import metrics

        due, worker.settled = worker.settled, {}
        for version, rollouts in sorted(due.items()):
            values = {"generation/rollouts": rollouts, "generation/tokens": rollouts * self._options.sampled}
            metrics.accumulate(self._run, step=version, values=values)


def payload(options: argparse.Namespace, seed: str) -> list[Any]:
    """The rollouts of a group: a conversation of several turns each, of `tokens` tokens in the mean."""
    from environments.types import Message, PlayedRollout, StopReason

    chance, found = random.Random(seed), []
    for _ in range(options.group_size):
        total = max(64, int(options.tokens * chance.uniform(0.5, 1.5)))
        sampled = int(total * options.sampled / options.tokens)
        mask = [0] * (total - sampled) + [1] * sampled
        words = [f"{chance.randrange(16**4):04x}" for _ in range(total)]
        size = max(1, total // (2 * options.turns))
        messages = [
            Message(role="user" if at % 2 == 0 else "assistant", content=" ".join(words[at * size : (at + 1) * size]))
            for at in range(2 * options.turns)
        ]
        found.append(
            PlayedRollout(
                token_ids=[chance.randrange(150_000) for _ in range(total)],
                loss_mask=mask,
                inference_logprobs=[-chance.random() if each else 0.0 for each in mask],
                reward=0.0,
                stop_reason=StopReason.STOP,
                messages=messages,
                dispatch_policy_version=0,
                first_policy_version=0,
                last_policy_version=0,
                replica="inference-0-1",
                generation_s=options.mean_s,
            )
        )
    return found


def parser() -> argparse.ArgumentParser:
    """Options of a process of workers."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("run")
    found.add_argument("--first", type=int, required=True)
    found.add_argument("--workers", type=int, required=True)
    found.add_argument("--slots", type=int, required=True)
    found.add_argument("--group-size", type=int, required=True)
    found.add_argument("--mean-s", type=float, required=True)
    found.add_argument("--ramp-s", type=float, required=True)
    found.add_argument("--tokens", type=int, required=True)
    found.add_argument("--sampled", type=int, required=True)
    found.add_argument("--turns", type=int, required=True)
    found.add_argument("--pause-s", type=float, required=True, help="after a claim that got less than it asked for")
    found.add_argument("--report-s", type=float, required=True)
    found.add_argument("--seed", type=int, required=True)
    return found


def main() -> None:
    options = parser().parse_args()
    django.setup()
    from rollouts.models import Run

    crowd = Crowd(Run.objects.get(key=options.run), options)
    ending = threading.Event()
    threading.Thread(target=answer, args=({"told": crowd.calls.told}, ending), daemon=True).start()
    crowd.work(ending)


if __name__ == "__main__":
    main()
