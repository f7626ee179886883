"""Whether a killed process is back, by what it does: the moment from which it may be killed again."""

import httpx
import redis

from controlplane.up import embedded
from tests.e2e.yard import Yard

KINDS = ("web", "worker", "reconciler", "redis", "postgres")


def is_alive(yard: Yard, kind: str) -> bool:
    """Whether the process does what it is there for, not only whether it exists."""
    if kind == "web":
        try:
            return httpx.get(f"{yard.url}/healthz", timeout=5).is_success
        except httpx.TransportError:
            return False
    if kind == "redis":
        return embedded.redis_answers(yard.home)
    if kind == "postgres":
        return bool(yard.try_sql("SELECT 1"))
    if kind == "worker":
        return _waits_for_tasks(yard.home.redis_url)
    # The leader's is the one lock on a single number; others are on pairs.
    leader = yard.try_sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted")
    return bool(leader) and bool(yard.victims(kind))


def _waits_for_tasks(redis_url: str) -> bool:
    try:
        with redis.Redis.from_url(redis_url, socket_timeout=2) as client:
            return any(each["cmd"] == "brpop" for each in client.client_list())
    except redis.RedisError:
        return False
