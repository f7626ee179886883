"""`manage.py reconcile`: run the reconciler until it is told to end."""

import asyncio
import os
import signal
import sys
import threading
from typing import Any

from django.core.management.base import BaseCommand

from workers import exporting
from workers.reconciler import Reconciler

_EXPORT_ENDS_S = 5.0
"""From the end of the loop until the process that writes exports has ended too."""


class Command(BaseCommand):
    """Run the loop that starts, watches, publishes to and ends the processes of runs, and have exports written."""

    help = "Start, watch and end the replicas of runs. Several may run: one leads, the others stand by."

    def handle(self, *_arguments: Any, **_options: Any) -> None:
        asyncio.run(_run())
        # A look in progress may block for a while on a replica. It may be abandoned at any line, so nobody waits.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _run() -> None:
    reconciler = Reconciler()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, reconciler.stop)
    ending = threading.Event()
    exports = threading.Thread(target=exporting.poll, args=(ending,), name="exports", daemon=True)
    exports.start()
    await reconciler.run()
    ending.set()
    exports.join(_EXPORT_ENDS_S)
