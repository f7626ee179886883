"""Passwords are hashed one at a time, and only with what the machine has left: a guess costs half a second of a core.

Signing in is rare and may wait; groups, batches and pages may not.
"""

import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from django.contrib.auth.hashers import PBKDF2PasswordHasher

from rollouts.errors import Unavailable

MAX_WAITING = 16
"""Beyond it whoever signs in is told to come again, as all of them would wait for ten seconds."""
PRIORITY = 10
"""As `nice` has it: a tenth of what others get. With none at all, nobody would sign in while a trainer computes."""
_places = threading.BoundedSemaphore(MAX_WAITING)


def _yield_to_others() -> None:
    if sys.platform == "linux":  # elsewhere a priority is the process'
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PRIORITY)


_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords", initializer=_yield_to_others)


class PatientHasher(PBKDF2PasswordHasher):
    """Django's own, with the same result, in a thread of its own. Raises Unavailable when too many wait for it."""

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        if not _places.acquire(blocking=False):
            raise Unavailable("Many sign in at this moment. Try again in some seconds.")
        try:
            hashed: Future[str] = _thread.submit(super().encode, password, salt, iterations)
            return hashed.result()
        finally:
            _places.release()
