"""The threads that decode bodies and talk to the database, apart from everybody else's."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import connection

P = ParamSpec("P")
T = TypeVar("T")

KEPT_S = 1.0
"""Taking a connection from the pool costs a round trip. A dead one fails one request, which its sender repeats."""
_mine = threading.local()
_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="data")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in one of them. Cancelling the wait does not undo what it commits."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(_call, function, *args, **kwargs))


def _call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Keep the thread's connection between calls, but once a second take one that the pool has checked."""
    if time.monotonic() - getattr(_mine, "taken_at", 0.0) > KEPT_S:
        connection.close()
        _mine.taken_at = time.monotonic()
    try:
        return function(*args, **kwargs)
    finally:
        connection.close_if_unusable_or_obsolete()  # no request of Django's ends in this thread that would do it
