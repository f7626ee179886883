"""The machine under the figures: what it is, what a server's processes use of it, and what else kept it busy."""

import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from benchmarks.wire_load.figures import Figures

ROLES = {
    "web": "controlplane.web.serve",
    "worker": "celery",
    "reconciler": "reconcile",
    "postgres": "postgres",
    "redis": "valkey-server",
}
"""Name in the figures -> what a command line contains. The first that matches counts."""

_KINDS = ("rss", "pss", "uss")


def facts() -> dict[str, Any]:
    """What a reader needs to know before comparing figures with those of another machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_1_min": round(os.getloadavg()[0], 2),
    }


class CpuSample(NamedTuple):
    """CPU seconds spent so far."""

    at: float
    role_s: dict[str, float]
    """By the server's processes, in each role."""
    machine_s: float
    """By every process of the machine, idle and waiting left out."""

    @classmethod
    def take(cls, processes: Iterable[psutil.Process]) -> Self:
        role_s: dict[str, float] = {}
        for process in processes:
            try:
                times, role = process.cpu_times(), role_of(process)
            except psutil.Error:
                continue  # ended meanwhile: its seconds are lost
            role_s[role] = role_s.get(role, 0.0) + times.user + times.system
        spent = psutil.cpu_times()
        return cls(time.monotonic(), role_s, sum(spent) - spent.idle - getattr(spent, "iowait", 0.0))

    @property
    def server_s(self) -> float:
        return sum(self.role_s.values())

    def until(self, later: Self, client_s: float) -> Figures:
        """Cores in use between two samples, by whom: a client near one core per process would be the bottleneck."""
        wall_s = later.at - self.at
        server, machine = later.server_s - self.server_s, later.machine_s - self.machine_s
        roles = later.role_s if len(later.role_s) > 1 else {}
        return {
            **{f"{role}_cpu_cores": (spent - self.role_s.get(role, 0.0)) / wall_s for role, spent in roles.items()},
            "server_cpu_cores": server / wall_s,
            "client_cpu_cores": client_s / wall_s,
            "rest_of_machine_cpu_cores": max(0.0, machine - server - client_s) / wall_s,
        }


def role_of(process: psutil.Process) -> str:
    """What a process is for; `main` when no role claims it, as the supervisor of ours."""
    line = " ".join(process.cmdline())
    return next((role for role, mark in ROLES.items() if mark in line), "main")


def memory(processes: Iterable[psutil.Process]) -> Figures:
    """MB of RSS, PSS and USS of all, and by role when there are several.

    RSS counts pages that processes share in each of them, PSS divides them, USS leaves them out.
    """
    found: Figures = {}
    for process in processes:
        try:
            role, used = role_of(process), process.memory_full_info()
        except psutil.Error:
            continue  # ended meanwhile
        for kind in _KINDS:
            for name in (f"{role}_{kind}_mb", f"all_{kind}_mb"):
                found[name] = found.get(name, 0.0) + getattr(used, kind) / 1e6
    several = len(found) > len(_KINDS) * 2
    return {name: value for name, value in found.items() if several or name.startswith("all_")}
