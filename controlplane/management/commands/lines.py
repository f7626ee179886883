"""`manage.py lines`: lead workers on other machines to the embedded servers, until told to end."""

import argparse
import asyncio
import signal
import socket
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from controlplane import certificate
from workers import lines
from workers.fleet.keys import key_of_lines


class Command(BaseCommand):
    """Answer on TLS lines."""

    help = "Lead workers on other machines to the embedded PostgreSQL and Redis, over TLS."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--fd", type=int, required=True, help="descriptor of a listening socket")

    def handle(self, *_arguments: Any, **options: Any) -> None:
        asyncio.run(_serve(socket.socket(fileno=options["fd"])))


async def _serve(listening: socket.socket) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    home = settings.HOME
    targets = {"postgres": home.postgres_socket_dir / ".s.PGSQL.5432", "redis": home.redis_socket}
    async with lines.serving(listening, *certificate.files(home), key_of_lines(), targets):
        await ended.wait()
