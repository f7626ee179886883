"""The threads that decode bodies and talk to the database, apart from everybody else's."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import connection

P = ParamSpec("P")
T = TypeVar("T")

_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="data")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in one of them. Cancelling the wait does not undo what it commits."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(_call, function, *args, **kwargs))


def _call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return function(*args, **kwargs)
    finally:
        connection.close()  # back to the pool: no request of Django's ends in this thread that would do it
