"""What processes and the servers have used so far."""

import time
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import psutil
import psycopg
import redis

_ASKED = """
SELECT pg_current_wal_lsn() - '0/0'::pg_lsn,
       (SELECT sum(xact_commit) FROM pg_stat_database),
       (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()),
       pg_database_size(current_database())
"""


class Used(NamedTuple):
    """At one moment."""

    at: float
    cpu_s: dict[str, float]
    """By part."""
    machine_s: float
    wal_bytes: int
    commits: int
    connections: int
    database_bytes: int
    redis_bytes: int
    redis_memory: int

    @classmethod
    def now(cls, parts: dict[str, int], owner_url: str, redis_url: str) -> Self:
        """`parts`: a process id of each, whose descendants count too."""
        with psycopg.connect(owner_url, autocommit=True) as connection:
            row = connection.execute(_ASKED).fetchone()
        assert row is not None
        with redis.Redis.from_url(redis_url) as client:
            told: Any = client.info()
        spent = psutil.cpu_times()
        busy = sum(spent) - spent.idle - getattr(spent, "iowait", 0.0) - spent.guest - spent.guest_nice
        cpu = {name: cpu_s(pid) for name, pid in parts.items()}
        numbers = (int(row[0]), int(row[1]), int(row[2]), int(row[3]))
        return cls(time.monotonic(), cpu, busy, *numbers, int(told["total_net_output_bytes"]), int(told["used_memory"]))

    def until(self, later: Self) -> dict[str, float]:
        """What was used between two moments, a second."""
        wall = later.at - self.at
        cores = {f"{name}_cores": (later.cpu_s[name] - self.cpu_s[name]) / wall for name in later.cpu_s}
        return {
            "seconds": wall,
            **cores,
            "rest_of_machine_cores": max(0.0, (later.machine_s - self.machine_s) / wall - sum(cores.values())),
            "wal_mb_per_s": (later.wal_bytes - self.wal_bytes) / wall / 1e6,
            "commits_per_s": (later.commits - self.commits) / wall,
            "connections": later.connections,
            "database_mb_per_s": (later.database_bytes - self.database_bytes) / wall / 1e6,
            "redis_mb_per_s": (later.redis_bytes - self.redis_bytes) / wall / 1e6,
            "redis_memory_mb": later.redis_memory / 1e6,
        }


def cpu_s(pid: int) -> float:
    """Of a process and all that it started; of those that have ended too, where their parent has seen it."""
    top = psutil.Process(pid)
    return sum(map(_own_s, [top, *top.children(recursive=True)]))


def _own_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0  # ended just now
    return float(times.user + times.system + times.children_user + times.children_system)


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """p50, p95, p99 and the largest."""
    ordered = sorted(values)
    if not ordered:
        return {}
    return {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in _SHARES.items()}


_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
