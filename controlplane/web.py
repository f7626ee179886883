"""Serve HTTP and websockets on a socket that was opened by somebody else: `python -m controlplane.web --fd N`.

`rollyard up` keeps the listening socket, so while a killed web process comes back, clients wait in the backlog instead
of being refused. Under systemd or Kubernetes run `uvicorn controlplane.asgi:application` behind a proxy instead, which
bounds the head of a request and the time it may take.
"""

import argparse
import os
import socket

import uvicorn

from controlplane.connections import Connection


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m controlplane.web", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of a listening TCP socket")
    listening = socket.socket(fileno=parser.parse_args().fd)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    config = uvicorn.Config(
        "controlplane.asgi:application",
        http=Connection,
        log_config=None,  # Django's LOGGING is the only one
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="websockets-sansio",
        ws_max_size=64 * 1024,  # browsers send subscriptions, nothing large
        timeout_graceful_shutdown=4,
    )
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
