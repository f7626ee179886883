"""A worker on another machine, as a job starts it: `python -m workers.remote`.

It opens the lines to the embedded servers, where there are such, and starts Celery behind them. Nothing of what it was
given is on a command line or in a file. SIGTERM and SIGUSR1, which a scheduler sends before a job's time is over, let
it hand back what it plays; SIGUSR2 lets it end after that.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

from trainers.child import adopt_orphans
from workers import lines
from workers.directories import OwnDirectory

VARIABLE = "ROLLYARD_WORKER"
UNTIL_VARIABLE = "ROLLYARD_WORK_UNTIL"
"""When its time is over, in seconds since 1970: no episode is begun that may not end before."""
PASSED = ("ROLLYARD_TOOL_SANDBOX", "ROLLYARD_TOOL_IMAGE", "ROLLYARD_SANDBOX_READABLE")
"""What an administrator sets for `rollyard up` holds on nodes, too: code of runs is as confined."""
CACHES = ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
"""By which the hub's cache is found."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def celery(concurrency: int) -> tuple[str, ...]:
    """The command of a worker that plays so many runs side by side."""
    return (
        *(sys.executable, "-m", "celery", "-q", "-A", "controlplane.celery", "worker", "-Q", "episodes"),
        *("--pool", "threads", "--concurrency", str(concurrency)),
        *("--without-gossip", "--without-mingle", "--loglevel", "INFO"),
    )


async def work(given: Mapping[str, Any]) -> int:
    """Be a worker until told to end; returns Celery's exit status.

    `given`: `environ` and `concurrency`; `hours`, 0 for no end; `lines` to the embedded servers, or None, with
    `address`, `certificate`, `key`, and `database` and `redis`: URLs that have {place} where the sockets are.
    """
    with OwnDirectory.temporary("rollyard-worker-") as own:
        place, environ = own.path, {**os.environ, **given["environ"]}
        environ.setdefault("ROLLYARD_HOME", str(place / "home"))
        if given["hours"]:
            environ[UNTIL_VARIABLE] = str(time.time() + given["hours"] * 3600)
        async with AsyncExitStack() as opened:
            if (way := given["lines"]) is not None:
                sockets = {"postgres": place / ".s.PGSQL.5432", "redis": place / "redis.sock"}
                host, port = way["address"]
                await opened.enter_async_context(lines.opened((host, port), way["certificate"], way["key"], sockets))
                environ["DATABASE_URL"] = way["database"].replace("{place}", quote(str(place), safe=""))
                environ["REDIS_URL"] = way["redis"].replace("{place}", quote(str(place)))
            process = await asyncio.create_subprocess_exec(*celery(given["concurrency"]), env=environ)
            loop = asyncio.get_running_loop()
            for number in _SIGNALS:
                loop.add_signal_handler(number, process.send_signal, signal.SIGTERM)
            loop.add_signal_handler(signal.SIGUSR2, process.send_signal, signal.SIGUSR2)
            return await process.wait()


def main() -> int:
    """Be the worker of a job."""
    if VARIABLE not in os.environ:
        sys.stderr.write("A worker on a node is started by `rollyard workers start`.\n")
        return 2
    adopt_orphans()
    return asyncio.run(work(json.loads(os.environ.pop(VARIABLE))))


if __name__ == "__main__":
    sys.exit(main())
