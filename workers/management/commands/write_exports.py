"""`manage.py write_exports`: write the exports that wait, and end."""

import os
import socket
from typing import Any

from django.core.management.base import BaseCommand

from rollouts.services.datasets import exports

_NICENESS = 10
"""Nobody waits for an export as they wait for a page or an episode."""


class Command(BaseCommand):
    """What is started when exports wait."""

    help = "Write the exports that nobody writes, one after the other. Several may run."

    def handle(self, *_arguments: Any, **_options: Any) -> None:
        os.nice(_NICENESS)
        count = exports.write_all(f"{socket.gethostname()}:{os.getpid()}")
        self.stdout.write(f"{count} exports")
