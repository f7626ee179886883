"""Where `rollyard up` listens, before anything is started, and the names by which it is reached there."""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from controlplane.home import Home
from controlplane.up.supervisor import StartError
from workers.launchers import accounts
from workers.launchers.sandbox import SandboxUnavailable


@contextlib.contextmanager
def listening_on(host: str, port: int | None, default: int, option: str) -> Iterator[socket.socket]:
    """Listen at a port, or where none was asked for at its default, or any free one. Raises StartError."""
    wanted = default if port is None else port
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, wanted))
    except OSError as error:
        if port is not None:
            listening.close()
            raise StartError(f"cannot listen on {host}:{wanted} ({error.strerror}): try {option} auto") from error
        listening.bind((host, 0))
    listening.listen(1024)
    with listening:
        yield listening


@contextlib.contextmanager
def for_runs(home: Home) -> Iterator[socket.socket]:
    """Listen where the code of runs, which has no network, reaches the API. Nobody else may enter the directory."""
    path = home.runs_socket
    path.parent.mkdir(exist_ok=True)
    account = ""
    with contextlib.suppress(SandboxUnavailable):  # which `_try_sandbox` tells
        account = accounts.account_of_runs()
    accounts.show(account, path.parent)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0o666)  # the directory decides
        listening.listen(1024)
        yield listening


@contextlib.contextmanager
def for_workers(host: str, port: int | None) -> Iterator[socket.socket | None]:
    """Listen where nodes reach this machine, if that is no address of the whole world. Raises StartError."""
    if port is None:
        yield None
        return
    if given := [name for name in ("DATABASE_URL", "REDIS_URL") if os.environ.get(name)]:
        raise StartError(f"lines lead to the embedded servers, but {' and '.join(given)} is set: no --lines-port then")
    named = urlsplit(os.environ.get("ROLLYARD_NODES_URL", "")).hostname or host
    address = ipaddress.ip_address(socket.gethostbyname(named))
    if address.is_unspecified:
        raise StartError(
            "set ROLLYARD_NODES_URL to the URL by which nodes reach this machine: lines listen there alone"
        )
    if not address.is_private:
        raise StartError(f"{address} is no private address: set DATABASE_URL and REDIS_URL to servers of your own")
    with listening_on(str(address), port, 0, "--lines-port") as listening:
        yield listening


def local_host(host: str) -> str:
    """By which this machine reaches what listens there."""
    return "127.0.0.1" if host in {"", "0.0.0.0"} else host


def shown_host(host: str) -> str:
    """By which people reach it, as far as this machine knows."""
    return socket.getfqdn() if host in {"", "0.0.0.0"} else host


def allowed_hosts(host: str) -> list[str]:
    """The names to answer to: those that were given, and its own."""
    given = [each for each in os.environ.get("ROLLYARD_ALLOWED_HOSTS", "").split(",") if each]
    return [*given, shown_host(host), *([socket.gethostname()] if host == "0.0.0.0" else [])]
