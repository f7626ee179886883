"""Serve HTTP and websockets on sockets that were opened by somebody else: `python -m controlplane.web.serve --fd N`.

`rollyard up` keeps the listening socket, so while a killed web process comes back, clients wait in the backlog instead
of being refused. Processes that share it are told apart by `--place`, beside `--counts-fd` (see `share.py`). Under
systemd or Kubernetes run `uvicorn controlplane.asgi:application` behind a proxy instead, which bounds the head of a
request and the time it may take.

Where there is a proxy, it says from whom a request comes: with FORWARDED_ALLOW_IPS the proxies that it names, with
ROLLYARD_HTTPS alone those of this machine.
"""

import argparse
import gc
import os
import socket
import warnings

import uvicorn
from django.conf import settings

from controlplane.web.connections import Connection
from controlplane.web.share import Share, SharingServer, counts_file
from rollouts import guesses


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m controlplane.web.serve", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of a listening TCP socket")
    parser.add_argument("--runs-fd", type=int, help="descriptor of a listening Unix socket, for the code of runs")
    parser.add_argument("--counts-fd", type=int, help="descriptor of the file in which those that share it count")
    parser.add_argument("--place", type=int, default=0, help="which of them this is, from 0")
    arguments = parser.parse_args()
    with counts_file(1) as alone:
        share = Share(alone.fileno() if arguments.counts_fd is None else arguments.counts_fd, arguments.place)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    # Of the files of pages, which WhiteNoise opens and Django reads whole, as small as they are.
    warnings.filterwarnings("ignore", message="StreamingHttpResponse must consume synchronous iterators")
    config = configured()
    # What was loaded stays. The collector would look through it now and then, for 0.1 s in which nobody is answered.
    gc.collect()
    gc.freeze()
    for_runs = None if arguments.runs_fd is None else socket.socket(fileno=arguments.runs_fd)
    guesses.only_runs_are_nameless = for_runs is not None
    SharingServer(config, socket.socket(fileno=arguments.fd), share, for_runs=for_runs).run()


def configured() -> uvicorn.Config:
    """What uvicorn is told, with the application loaded."""
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
        # uvicorn believes this machine. Without a proxy, that is every account of it.
        proxy_headers=settings.HTTPS or "FORWARDED_ALLOW_IPS" in os.environ,
    )
    config.load()
    return config


if __name__ == "__main__":
    main()
