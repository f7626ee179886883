"""Write exports: where the home is, from which they are fetched, and in a process of their own.

    beside the reconciler, every few seconds: does one wait? ─▶ `write_exports` ─▶ takes and writes each, and ends

A process that dies leaves a lease that ends, and the next one goes on behind its last chunk.
"""

import logging
import subprocess
import sys
import threading
import time

from django.db import DatabaseError, InterfaceError

from rollouts.services.datasets import exports
from workers.database import with_connection

log = logging.getLogger(__name__)

POLL_EVERY_S = 2.0
_SWEEP_EVERY_S = 3600.0


def poll(stopping: threading.Event) -> None:
    """Have exports written while some wait, and old ones removed, until told to stop. Blocks."""
    swept_at = -_SWEEP_EVERY_S
    while not stopping.is_set():
        try:
            if with_connection(exports.are_waiting):
                _write(stopping)
            if time.monotonic() - swept_at >= _SWEEP_EVERY_S:
                swept_at = time.monotonic()
                with_connection(exports.sweep)
        except (DatabaseError, InterfaceError) as error:
            log.warning("cannot look for exports (%s); trying again", str(error).strip())
        except OSError as error:
            log.warning("cannot write exports (%s); trying again", error)
        stopping.wait(POLL_EVERY_S)


def _write(stopping: threading.Event) -> None:
    with subprocess.Popen([sys.executable, "-m", "django", "write_exports"]) as process:
        while process.poll() is None:
            if stopping.wait(POLL_EVERY_S / 4):
                process.terminate()
                return
    if process.returncode:
        log.warning("write_exports ended with %s; another goes on", process.returncode)
