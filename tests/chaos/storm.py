"""Kill processes of a whole installation at random under load, then hold what is left against the promises.

    python -m tests.chaos.storm --kills 1000 --seed 7 --cuts 200

    schedule (from the seed) ─► the kind is alive again ─► pause ─► SIGKILL ─► next
    submitters, trainers ─► proxy that cuts ─► web ...          at the end: quiesce, stop the run, checker

The seed replays the order of the kills and the pauses between them, not what the machine was doing then. Prints a line
now and then and at the end one JSON object; the exit status is 1 if a promise was broken.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil

from tests.chaos.alive import KINDS, is_alive
from tests.chaos.crowd import Crowd
from tests.chaos.proxy import Proxy, running_proxy
from tests.e2e.yard import Yard, running_yard, until

MEAN_PAUSE_S = 0.3
CLIENT_SHARE = 0.1
"""Of the kills that take a client along."""
RECOVERY_DEADLINE_S = 120.0
"""Within this every killed process has to be back by itself."""
PROGRESS_EVERY_S = 10.0
SETTINGS = ["batch.batch_size=32", "sampling.group_size=4", "algorithm.max_off_policy_steps=4"]
BATCH_PATHS = r"/batches/\d+|/batch$"


T = TypeVar("T")


class Strike(NamedTuple):
    """One planned kill."""

    kind: str
    pause_s: float
    """Between the moment the kind is seen alive and the kill."""
    choice: float
    """In [0, 1): which of several processes of the kind."""
    client: float | None
    """In [0, 1): which client is killed and replaced as well; None: none is."""


def schedule(seed: int, kills: int) -> Iterator[Strike]:
    """What is killed when: the same for the same seed. In every round each kind comes once, in any order."""
    dice = random.Random(seed)
    left: list[str] = []
    for _ in range(kills):
        left = left or dice.sample(KINDS, len(KINDS))
        client = dice.random()
        yield Strike(
            kind=left.pop(),
            pause_s=dice.expovariate(1 / MEAN_PAUSE_S),
            choice=dice.random(),
            client=client / CLIENT_SHARE if client < CLIENT_SHARE else None,
        )


class Storm:
    """One installation, its runs, their crowd, and what was done to them."""

    def __init__(self, yard: Yard, crowd: Crowd, runs: dict[str, str]) -> None:
        self.yard = yard
        self.crowd = crowd
        self.runs = runs
        """Protocol -> key of the run that is fed and trained over it."""
        self.kills: Counter[str] = Counter()
        self.waited_s: Counter[str] = Counter()
        """For each kind to be back when it was to be killed."""
        self.replaced = 0
        """Clients."""
        self._steps: dict[str, int] = {}
        self._said_at = self._began_at = time.monotonic()

    def strike(self, strike: Strike) -> None:
        """Wait until the kind is alive, pause, kill one of it."""
        began_at = time.monotonic()
        self.until(partial(is_alive, self.yard, strike.kind), what=f"{strike.kind} is back")
        self.waited_s[strike.kind] += time.monotonic() - began_at
        time.sleep(strike.pause_s)  # the random moment is the point of it
        target = self.until(partial(self.yard.kill_one, strike.kind, strike.choice), what=f"there is a {strike.kind}")
        psutil.wait_procs([target], timeout=10)
        self.kills[strike.kind] += 1
        if strike.client is not None:
            self.crowd.replace(strike.client)
            self.replaced += 1
        self.crowd.check()
        self.say()

    def cut(self, proxy: Proxy) -> None:
        """Go on until as many responses were cut as were to be."""
        while (left := proxy.left) > 0:
            self.until(partial(_has_cut, proxy, left), what="another batch is fetched")
            self.crowd.check()
            self.say()

    def quiesce(self) -> None:
        """Everything is alive and works again, by itself; then nobody asks for anything any more."""
        for kind in KINDS:
            self.until(partial(is_alive, self.yard, kind), what=f"{kind} is back")
        for protocol, run in self.runs.items():
            self.until(partial(_has_passed, self.yard, run, self.yard.step(run)), what=f"a step of {protocol} follows")
        for role in ("submitter", "environment", "trainer"):
            self.crowd.stop(role)
        for run in self.runs.values():
            self.yard.rollyard("runs", "stop", run)
            self.until(partial(_has_ended, self.yard, run), what="the run is stopped")

    def steps(self) -> dict[str, int]:
        """Acknowledged steps by protocol; the last that were seen while the database is away."""
        for protocol, run in self.runs.items():
            self._steps[protocol] = self.yard.step(run) or self._steps.get(protocol, 0)
        return self._steps

    def say(self, *, now: bool = False) -> None:
        """Print how far it is, every few seconds."""
        if now or time.monotonic() - self._said_at > PROGRESS_EVERY_S:
            self._said_at = time.monotonic()
            killed = ", ".join(f"{self.kills[kind]} {kind}" for kind in KINDS)
            took_s = self._said_at - self._began_at
            print(f"{took_s:6.0f} s  {self.kills.total()} kills ({killed}); steps {self.steps()}", flush=True)

    def until(self, condition: Callable[[], T | None], *, what: str) -> T:
        return until(condition, within_s=RECOVERY_DEADLINE_S, what=what)


def _has_cut(proxy: Proxy, left: int) -> bool:
    return proxy.left < left


def _has_passed(yard: Yard, run: str, step: int) -> bool:
    return yard.step(run) > step


def _has_ended(yard: Yard, run: str) -> bool:
    return yard.state(run) == "stopped"


def _takes_groups(yard: Yard, run: str) -> bool:
    return yard.state(run) in {"starting", "running"}


def violations(yard: Yard, run: str, histories: Path) -> list[tuple[str, str, str]]:
    """What the checker finds. Loads Django, on the installation's database."""
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    os.environ |= {"ROLLYARD_HOME": str(yard.home.path), "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    import django

    django.setup()
    from rollouts.models import Run
    from tests.chaos import checker, history

    return [tuple(each) for each in checker.check(Run.objects.get(key=run), history.read(histories, run))]


def _keep_log(yard: Yard, directory: Path) -> None:
    """What every process said, which would vanish with the home."""
    shutil.copy(yard.home.path / "logs" / "up.log", directory)


def storm(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """The whole story; returns its summary."""
    began_at = time.monotonic()
    with ExitStack() as stack:
        yard = stack.enter_context(running_yard(directory / "supervisor.log"))
        stack.callback(_keep_log, yard, directory)
        scopes = [word for scope in ("submit", "train", "read") for word in ("--scope", scope)]
        token = yard.rollyard("token", "create", "storm", *scopes)["token"]
        native, atropos = (yard.rollyard("launch", "external-trainer", *SETTINGS) for _ in range(2))
        proxy = Proxy(yard.url, path=BATCH_PATHS, seed=options.seed)
        proxy.left = options.cuts
        proxied = stack.enter_context(running_proxy(proxy))
        crowd = Crowd(directory, options.seed)
        stack.callback(crowd.kill)
        story = Storm(yard, crowd, {"native": native["run"], "atropos": atropos["run"]})
        for protocol, run in story.runs.items():
            story.until(partial(_takes_groups, yard, run), what=f"the run of {protocol} takes groups")
        module, outside = "tests.chaos.atropos_clients", atropos["atropos_url"]
        for _ in range(options.trainers):
            crowd.add("trainer", url=proxied, run=native["run"], token=token)
            crowd.add("trainer", module=module, url=outside.replace(yard.url, proxied), run=atropos["run"])
        for _ in range(options.submitters):
            crowd.add("submitter", url=yard.url, run=native["run"], token=token)
            crowd.add("environment", module=module, url=outside, run=atropos["run"])
        for protocol, run in story.runs.items():
            story.until(partial(_has_passed, yard, run, 0), what=f"the first step of {protocol} is done")
        for strike in schedule(options.seed, options.kills):
            story.strike(strike)
        story.cut(proxy)
        story.say(now=True)
        story.quiesce()
        return {
            "seed": options.seed,
            "kills": dict(story.kills),
            "clients_replaced": story.replaced,
            "cuts": len(proxy.cuts),
            **{
                protocol: {**crowd.counts(run), "steps": yard.step(run), "violations": violations(yard, run, directory)}
                for protocol, run in story.runs.items()
            },
            "waited_s": {kind: round(seconds, 1) for kind, seconds in story.waited_s.items()},
            "wall_s": round(time.monotonic() - began_at, 1),
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.storm", description=__doc__)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--cuts", type=int, default=0, help="batch responses to cut in the middle")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--submitters", type=int, default=2, help="per protocol")
    parser.add_argument("--trainers", type=int, default=2, help="per protocol")
    parser.add_argument("--keep", type=Path, help="directory that keeps the histories and logs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the installation and the clients too
    print(
        f"python -m tests.chaos.storm --seed {options.seed} --kills {options.kills} --cuts {options.cuts}", flush=True
    )
    directory = options.keep or Path(tempfile.mkdtemp(prefix="rollyard-storm-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"histories and logs are in {directory}; they are removed when every promise held", flush=True)
    try:
        summary = storm(options, directory)
    except AssertionError as error:
        print(json.dumps({"seed": options.seed, "stuck": str(error), "directory": str(directory)}))
        return 1
    is_clean = not any(summary[protocol]["violations"] for protocol in ("native", "atropos"))
    if is_clean and not options.keep:
        shutil.rmtree(directory)
    print(json.dumps(summary))
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
