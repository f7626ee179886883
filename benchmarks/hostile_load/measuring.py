"""Quiet beside attack: the honest client's p50, and what the web processes spend and hold."""

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.hostile_load import senders
from benchmarks.hostile_load.attacks import MIB, Attack
from benchmarks.hostile_load.honest import Honest, Seen
from benchmarks.hostile_load.target import Target
from benchmarks.wire_load.figures import Figures, percentile
from benchmarks.wire_load.machine import role_of
from benchmarks.wire_load.servers import Server

ONES = 5
"""Times that one body is sent alone."""
WARM_UP_S = 3.0
SETTLED_S, SETTLE_DEADLINE_S = 0.5, 60.0
SETTLED_CORES = 0.2


class Bench:
    """One Rollyard with an honest client."""

    def __init__(self, server: Server, target: Target) -> None:
        self.target = target
        self._honest = Honest(target)
        self._web = [each for each in server.processes() if role_of(each) == "web"]
        self._sources = itertools.count(256, 64)
        """First addresses of senders: none is used twice."""

    def warm_up(self) -> None:
        """What is loaded at first use is nobody's cost."""
        self._honest.work(WARM_UP_S)

    def cost_of_one(self, attack: Attack) -> Figures:
        """CPU and memory that one such body takes, with nobody else about; nothing for what is no body.

        The median of CPU, which the kernel counts in hundredths of a second, and the highest peak.
        """
        if not attack.is_body:
            return {}
        source, cpu_ms, peaks = next(self._sources), [], []
        for _ in range(ONES + 1):  # the first is not counted
            self._settle()
            before = self._cpu_s()
            with self._peak() as peak:
                senders.send_one(self.target.site, attack, source)
                self._settle()
            cpu_ms.append(1000 * (self._cpu_s() - before))
            peaks.append(peak[0])
        return {"one_cpu_ms": percentile(cpu_ms[1:], 0.5), "one_mb": max(peaks[1:])}

    def round(self, attack: Attack, count: int, seconds: float) -> Figures:
        """Quiet, then under attack."""
        self._settle()
        quiet, quiet_cpu_s, quiet_s = self._watched(seconds)
        began = time.monotonic()
        with self._peak() as peak, senders.attacking(self.target.site, attack, count, next(self._sources)) as log:
            attacked, cpu_s, attacked_s = self._watched(seconds)
            lasted_s = time.monotonic() - began
        calm, hurt = quiet.p50_ms(), attacked.p50_ms()
        figures = {f"{name}_quiet_p50_ms": value for name, value in calm.items()}
        figures |= {f"{name}_attacked_p50_ms": value for name, value in hurt.items()}
        figures |= {f"ratio_{name}": hurt[name] / calm[name] for name in calm}
        figures |= {f"answered_{status}": float(many) for status, many in sorted(log.answers.items())}
        return figures | {
            "refused": float(attacked.refused),
            "refused_quiet": float(quiet.refused),
            "grown_mb": peak[0],
            "answers_per_s": log.sent / lasted_s,
            "web_quiet_cpu_cores": quiet_cpu_s / quiet_s,
            "web_cpu_cores": cpu_s / attacked_s,
            "sender_cpu_cores": log.cpu_s / lasted_s,
        }

    def _watched(self, seconds: float) -> tuple[Seen, float, float]:
        """(what the honest client saw, CPU seconds of the web processes, wall seconds)."""
        cpu_s, began = self._cpu_s(), time.monotonic()
        seen = self._honest.work(seconds)
        return seen, self._cpu_s() - cpu_s, time.monotonic() - began

    def _cpu_s(self) -> float:
        return sum(sum(each.cpu_times()[:2]) for each in self._web)

    @contextlib.contextmanager
    def _peak(self) -> Iterator[list[float]]:
        """The MB by which the web processes together grew meanwhile, at the peak of each."""
        before = {each: each.memory_info().rss for each in self._web}
        for each in self._web:
            Path(f"/proc/{each.pid}/clear_refs").write_text("5")  # the peak begins anew
        found: list[float] = []
        yield found
        found.append(sum(_peak_bytes(each) - rss for each, rss in before.items()) / MIB)

    def _settle(self) -> None:
        """Return when the web processes have nothing left to do."""
        give_up_at = time.monotonic() + SETTLE_DEADLINE_S
        while time.monotonic() < give_up_at:
            before = self._cpu_s()
            time.sleep(SETTLED_S)
            if self._cpu_s() - before < SETTLED_CORES * SETTLED_S:
                return
        raise SystemExit(f"the web processes were still at work {SETTLE_DEADLINE_S:.0f} s after an attack")


def _peak_bytes(process: psutil.Process) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
