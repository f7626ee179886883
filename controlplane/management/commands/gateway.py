"""`manage.py gateway`: serve sessions of programs outside until it is told to end."""

import argparse
import asyncio
import contextlib
import socket
from typing import Any

import uvicorn
from django.core.management.base import BaseCommand

from controlplane.web.connections import Connection
from environments.gateway.serving import answer_at_once, configured
from workers.gateway import AgentGateway, application


class Command(BaseCommand):
    """Run the gateway."""

    help = "Serve the addresses of sessions, through which programs play the live policies of runs."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--fd", type=int, help="descriptor of a listening socket, in place of host and port")
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8001)

    def handle(self, *_arguments: Any, **options: Any) -> None:
        if options["fd"] is None:
            listener = socket.create_server((options["host"], options["port"]))
        else:
            listener = socket.socket(fileno=options["fd"])
        answer_at_once(listener)
        asyncio.run(_serve(listener))


async def _serve(listener: socket.socket) -> None:
    gateway = AgentGateway()
    keeping = asyncio.create_task(gateway.keep())
    try:
        await uvicorn.Server(configured(application(gateway), Connection)).serve(sockets=[listener])
    finally:
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
        await gateway.aclose()
