"""What code of a run tries that wants more than its run: the model's, the loss's, an environment's, all with this.

It lies as a package of its own in the environment of the installation under test, as pip would have put it there. What
it came to know of the installation, such as paths, stands in `known.json` beside it. Each attempt returns what it won,
or nothing, or raises; what was won is written into the directory that the code was started in.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_ATTEMPTS: list[Callable[[dict[str, Any]], Any]] = []
_CLONE_NEWUSER = 0x10000000
REPORT = "intruder-{}.json"


def _attempt(function: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    _ATTEMPTS.append(function)
    return function


def attack(role: str) -> None:
    """Try everything, once a process, and leave a report."""
    known = json.loads(Path(__file__).with_name("known.json").read_text())
    won = {}
    for each in _ATTEMPTS:
        with contextlib.suppress(Exception):
            if gain := each(known):
                won[each.__name__] = repr(gain)[:500]
    report = {"tried": [each.__name__ for each in _ATTEMPTS], "won": won, "listens": _listen()}
    Path(REPORT.format(role)).write_text(json.dumps(report))


@_attempt
def read_files_of_the_installation(known: dict[str, Any]) -> list[str]:
    return [path for path in known["files"] if _reads(path)]


@_attempt
def read_secrets_in_variables(known: dict[str, Any]) -> list[str]:
    values = [value for value in known["secrets"] if value]
    return [name for name, given in os.environ.items() if any(value in given for value in values)]


@_attempt
def read_secrets_of_other_processes(known: dict[str, Any]) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            content = path.read_bytes().decode(errors="replace")
            if any(value in content for value in known["secrets"] if value):
                found.append(str(path))
    return found


@_attempt
def become_superuser_through_the_database(known: dict[str, Any]) -> list[str]:
    import psycopg

    won = []
    for host in (known["postgres"], "127.0.0.1"):
        for user in ("postgres", "rollyard", "rollyard_app", "rollyard_owner", "root"):
            for password in ("", *known["guesses"]):
                with contextlib.suppress(psycopg.Error):
                    with psycopg.connect(
                        host=host, user=user, password=password, dbname="postgres", connect_timeout=3
                    ) as connection:
                        connection.execute("SELECT 1")
                    won.append(f"{user} at {host}")
    return won


@_attempt
def reach_addresses(known: dict[str, Any]) -> list[Any]:
    return [address for address in known["addresses"] if _connects(address)]


@_attempt
def see_processes_of_others(known: dict[str, Any]) -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if any(word in line for word in ("postgres", "valkey", "celery", "web.serve"))]


@_attempt
def signal_processes_of_others(known: dict[str, Any]) -> list[int]:
    hit = []
    for pid, name in known["processes"]:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().hex() == name:
                os.kill(pid, signal.SIGCONT)
                hit.append(pid)
    return hit


@_attempt
def use_the_network(known: dict[str, Any]) -> list[str]:
    return [name for _, name in socket.if_nameindex() if name != "lo"]


@_attempt
def use_the_api_beyond_the_run(known: dict[str, Any]) -> list[str]:
    """With the run's own token, over the socket that it has for its own routes."""
    url, token = os.environ.get("ROLLYARD_URL", ""), os.environ.get("ROLLYARD_TOKEN", "")
    if not url.startswith("unix://"):
        return []
    won = []
    other, own = known["other_run"], os.environ["ROLLYARD_RUN"]
    for method, path in (
        ("GET", "/"),
        ("GET", "/login/"),
        ("GET", "/admin/"),
        ("GET", "/runs/"),
        ("GET", f"/api/v1/runs/{other}"),
        ("GET", f"/api/v1/runs/{other}/metrics"),
        ("POST", f"/api/v1/runs/{other}/stop"),
        ("POST", f"/api/v1/runs/{own}/stop"),
        ("POST", f"/api/v1/runs/{own}/tokens"),
        ("POST", "/api/v1/runs"),
        ("GET", "/api/v1/models"),
    ):
        status = _http(url.removeprefix("unix://"), method, path, token)
        if status < 400 or status >= 500:
            won.append(f"{method} {path}: {status}")
    return won


@_attempt
def become_another_account(known: dict[str, Any]) -> list[str]:
    """In a child: who succeeds could not write its report."""
    return [
        name for name, change in (("gid", os.setgid), ("uid", os.setuid)) if _works(change, 0 if os.getuid() else 65534)
    ]


@_attempt
def make_namespaces(known: dict[str, Any]) -> bool:
    return _works(ctypes.CDLL(None).unshare, _CLONE_NEWUSER)


@_attempt
def write_elsewhere(known: dict[str, Any]) -> None:
    """No gain here, where a path may be one of the sandbox alone: the directories themselves say."""
    for directory in known["directories"]:
        with contextlib.suppress(OSError):
            Path(directory, f"intruder-{os.getpid()}").write_text("was here")


@_attempt
def plant_links(known: dict[str, Any]) -> None:
    """No gain at once: whether the control plane follows them, its files say afterwards."""
    shown = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for place in [Path.cwd(), *(Path(path) for path in shown if path.startswith(known["home"]))]:
        for index, target in enumerate(known["files"]):
            with contextlib.suppress(OSError):
                (place / f"link-{index}").symlink_to(target)


def _works(call: Callable[[int], int | None], argument: int) -> bool:
    """Whether a system call succeeds, in a child of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(1 if call(argument) else 0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _listen() -> int:
    """A port on all interfaces, held until the process ends: nobody out there may reach it."""
    server = socket.create_server(("0.0.0.0", 0))
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    port: int = server.getsockname()[1]
    return port


def _accept(server: socket.socket) -> None:
    while True:
        server.accept()[0].close()


def _reads(path: str) -> bool:
    try:
        if os.path.isdir(path):
            return bool(os.listdir(path))
        with open(path, "rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def _connects(address: Any) -> bool:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(3)
        try:
            client.connect(address if isinstance(address, str) else tuple(address))
        except OSError:
            return False
        return True


def _http(path: str, method: str, target: str, token: str) -> int:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(path)
        lines = [
            f"{method} {target} HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {token}",
            "Connection: close",
        ]
        body = "{}" if method == "POST" else ""
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", body]
        client.sendall("\r\n".join(lines).encode())
        return int(b"".join(_received(client)).split()[1])


def _received(client: socket.socket) -> Iterator[bytes]:
    while chunk := client.recv(65_536):
        yield chunk


if __name__ == "__main__":
    attack(sys.argv[1])
