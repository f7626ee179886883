"""Use the ORM from asyncio and from threads of our own without keeping connections."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import connection

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E")

_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="database")
"""Apart from the loop's own executor: an environment that blocks its threads must not keep them from the database."""
_keeper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keeper")
"""For what keeps others from taking over: it must not wait behind those who wait for a lock."""


def with_connection(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a thread that is not a request: its connection goes back to the pool afterwards."""
    try:
        return function(*args, **kwargs)
    finally:
        connection.close()


def give_back() -> None:
    """Give this thread's connection back to the pool before something that may take long: the next query takes one
    again. Not in a transaction, which has to keep it."""
    if not connection.in_atomic_block:
        connection.close()


def at_once(function: Callable[[E], T], each: Sequence[E]) -> list[T]:
    """What a function that touches no row answers for each, in a thread for each; this one gives its connection back
    meanwhile. Raises what the first that failed raised, once all are done."""
    give_back()
    with ThreadPoolExecutor(max_workers=max(1, len(each))) as threads:
        return list(threads.map(function, each))


async def in_database(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a database thread. Cancelling the wait does not undo what it commits."""
    call = partial(with_connection, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


async def keeping(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `in_database`, in the thread that renews."""
    call = partial(with_connection, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_keeper, call)
