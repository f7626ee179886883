"""The threads that decode bodies and talk to the database, apart from everybody else's."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import connection

P = ParamSpec("P")
T = TypeVar("T")

KEPT_S = 1.0
"""Taking a connection from the pool costs a round trip. A dead one fails a request, and those that
share its transaction: their senders repeat them."""
_mine = threading.local()
_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="data")
_large = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large")


@dataclass(slots=True)
class Spent:
    """What threads spent on one request."""

    cpu_s: float = 0.0


_spent: ContextVar[Spent | None] = ContextVar("spent", default=None)


@contextmanager
def spending(spent: Spent) -> Iterator[None]:
    """What is called in a thread meanwhile is counted there."""
    token = _spent.set(spent)
    try:
        yield
    finally:
        _spent.reset(token)


@contextmanager
def counted() -> Iterator[None]:
    """In a thread that knows the context of its request: count what is done meanwhile."""
    began = time.thread_time()
    try:
        yield
    finally:
        if (spent := _spent.get()) is not None:
            spent.cpu_s += time.thread_time() - began


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in one of them. Cancelling the wait does not undo what it commits."""
    return await _in(_threads, partial(_call, function, *args, **kwargs))


async def in_large_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same in the one thread for what takes much memory: decoded, a large body has several times its size."""
    return await _in(_large, partial(_call, function, *args, **kwargs))


async def _in(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, call)


def _call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Keep the thread's connection between calls, but once a second take one that the pool has checked."""
    if time.monotonic() - getattr(_mine, "taken_at", 0.0) > KEPT_S:
        connection.close()
        _mine.taken_at = time.monotonic()
    try:
        with counted():
            return function(*args, **kwargs)
    finally:
        connection.close_if_unusable_or_obsolete()  # no request of Django's ends in this thread that would do it
