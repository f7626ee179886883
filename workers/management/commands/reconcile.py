"""`manage.py reconcile`: run the reconciler until it is told to end."""

import asyncio
import os
import signal
import sys
from typing import Any

from django.core.management.base import BaseCommand

from workers.reconciler import Reconciler


class Command(BaseCommand):
    """Run the loop that starts, watches, publishes to and ends the processes of runs."""

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
    await reconciler.run()
