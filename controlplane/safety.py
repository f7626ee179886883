"""Settings under which no process may answer anybody, each with its fix. Needs no Django: the supervisor asks too."""

import os
import shlex
import stat
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from controlplane.home import CLOSED, OWNER_ONLY, runs_directory
from environments import reserved, unconfined

PLAIN_HTTP_VARIABLE = "ROLLYARD_UNSAFE_PLAIN_HTTP"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_TEST_CLIENT = "testserver"
"""Django's name for itself in tests."""
_YES = {"1", "true", "on", "yes", "y", "ok"}
_SHORTEST_KEY = 32
_PLACEHOLDER = "django-insecure-"
"""How Django begins a key that it wrote into a new project for others to replace."""
_IN_THE_CLEAR = "Other machines may connect over plain HTTP: passwords, cookies and keys pass in the clear."
_BY_TLS = (
    "Put a proxy that speaks TLS before it and set ROLLYARD_HTTPS=1, or listen on this machine only; "
    f"{PLAIN_HTTP_VARIABLE}=1 is for a network where nobody listens."
)


class Refusal(NamedTuple):
    """What is unsafe, why, and what to do about it."""

    what: str
    fix: str
    id: str
    """Of the system check."""

    def __str__(self) -> str:
        return f"{self.what} {self.fix}"


class UnsafeSettings(RuntimeError):
    """The process must not start; the message has every reason and its fix."""


class Installation(NamedTuple):
    """What is judged."""

    debug: bool
    """Whether errors are shown with their stack."""
    hosts: Collection[str]
    """The names under which people reach this server."""
    secret_key: str
    https: bool
    """Whether people reach it through a proxy that speaks TLS."""
    plain_http: bool
    """Whether somebody chose to let other machines connect without."""
    home: Path
    runs: Path
    """Where runs have their directories."""
    confined: bool
    """Whether code of runs lives in sandboxes."""
    serves: bool = True
    """Whether it would answer people, and is no command of a developer."""

    @property
    def is_reached_from_elsewhere(self) -> bool:
        """Whether a name is none of this machine's own."""
        return bool(set(self.hosts).difference((*_LOOPBACK, _TEST_CLIENT)))


def installation(
    environ: Mapping[str, str],
    *,
    home: Path,
    secret_key: str,
    hosts: Collection[str] = (),
    https: bool | None = None,
    serves: bool = True,
) -> Installation:
    """What these variables say, with ``hosts`` besides theirs."""
    url = environ.get("ROLLYARD_URL", "")
    is_https = flag(environ, "ROLLYARD_HTTPS") if environ.get("ROLLYARD_HTTPS") else url.startswith("https://")
    return Installation(
        debug=flag(environ, "ROLLYARD_DEBUG"),
        hosts=[*hosts_of(environ), *hosts],
        secret_key=secret_key,
        https=is_https if https is None else https,
        plain_http=flag(environ, PLAIN_HTTP_VARIABLE),
        home=home,
        runs=runs_directory(home, environ),
        confined=not unconfined.is_unconfined(),
        serves=serves,
    )


def flag(environ: Mapping[str, str], name: str) -> bool:
    """Whether a variable says yes."""
    return environ.get(name, "").strip().lower() in _YES


def hosts_of(environ: Mapping[str, str]) -> list[str]:
    """The names under which people and nodes reach this server, as these variables say."""
    named = [each for each in environ.get("ROLLYARD_ALLOWED_HOSTS", "").split(",") if each]
    urls = [urlsplit(environ.get(name, "")).hostname for name in ("ROLLYARD_URL", "ROLLYARD_NODES_URL")]
    return list(dict.fromkeys([*_LOOPBACK, *named, *filter(None, urls)]))


def refusals(judged: Installation) -> list[Refusal]:
    """What is wrong with these settings."""
    found = []

    def refuse(number: int, what: str, fix: str) -> None:
        found.append(Refusal(what, fix, f"controlplane.E{number:03}"))

    if judged.debug and (judged.serves or judged.is_reached_from_elsewhere):
        what = "ROLLYARD_DEBUG is on: whoever causes an error is shown the stack, with what secrets are in it."
        refuse(2, what, "Unset ROLLYARD_DEBUG; `python manage.py runserver` is for developers.")
    if wide := [each for each in judged.hosts if _is_wide(each)]:
        what = f"ROLLYARD_ALLOWED_HOSTS contains {wide[0]}: links in pages could be made to point elsewhere."
        refuse(3, what, "Name the hosts under which people reach this server.")
    if len(judged.secret_key) < _SHORTEST_KEY or len(set(judged.secret_key)) < _SHORTEST_KEY // 4:
        what = (
            f"ROLLYARD_SECRET_KEY has less than {_SHORTEST_KEY} characters, or few different: sessions can be forged."
        )
        refuse(4, what, "Unset it and let ROLLYARD_HOME/secret_key be made.")
    elif judged.secret_key.startswith(_PLACEHOLDER):
        what = f"ROLLYARD_SECRET_KEY begins with {_PLACEHOLDER}: it is of an example, and sessions can be forged."
        refuse(4, what, "Unset it and let ROLLYARD_HOME/secret_key be made.")
    if judged.is_reached_from_elsewhere and not judged.https and not judged.plain_http:
        refuse(5, _IN_THE_CLEAR, _BY_TLS)
    if opened := [*find_open(judged.home, judged.runs)]:
        what = f"{', '.join(map(str, opened))} can be read by other accounts: there are keys, or what opens them."
        refuse(6, what, f"chmod -R go-rwx {shlex.join(map(str, opened))}")
    # Of root's files those of the home are closed to the account of runs.
    if judged.confined and os.geteuid() != 0 and (inside := find_shown(judged.home, judged.runs)):
        what = f"{inside[0]} lies in {inside[1]}, which every run is shown for the programs in it: keys would be too."
        refuse(8, what, "Set ROLLYARD_HOME, and ROLLYARD_RUNS_DIR where it is set, to a directory elsewhere.")
    if not judged.confined and os.geteuid() == 0:
        what = f"{unconfined.VARIABLE} is set for root: the code of every run would be root on this machine."
        refuse(7, what, "Unset it, or start Rollyard as another account.")
    return found


def _is_wide(host: str) -> bool:
    """Whether it allows any name, or any name of a whole top-level domain."""
    return host == "*" or (host.startswith(".") and "." not in host.strip("."))


def find_open(home: Path, runs: Path) -> Iterator[Path]:
    """What of an installation others may look into.

    They may pass through the home itself: where we are root, PostgreSQL's account has to.
    """
    secrets = [home / "secret_key", *(home / "passwords").glob("*"), *(home / "secrets").glob("*")]
    for path in dict.fromkeys([home, *(home / name for name in CLOSED), runs, *secrets]):
        others = OWNER_ONLY & ~(stat.S_IXGRP | stat.S_IXOTH) if path == home else OWNER_ONLY
        try:
            mode = path.stat().st_mode
        except OSError:
            continue
        if mode & others:
            yield path


def find_shown(home: Path, runs: Path) -> tuple[Path, Path] | None:
    """What of an installation lies where every sandbox looks for programs, and that place."""
    shown = [reserved.SYSTEM, *reserved.programs()]
    ways = ((place, each) for place in (home, runs) for each in shown)
    return next(((place, each) for place, each in ways if place.resolve().is_relative_to(each.resolve())), None)


def refuse_unsafe(judged: Installation) -> None:
    """Raise UnsafeSettings for settings under which nobody may be answered."""
    if found := refusals(judged):
        raise UnsafeSettings("\n".join(map(str, found)))


def sheltered(application: Any, judged: Installation) -> Any:
    """The ASGI application, closed to whoever comes in the clear to an address that other machines reach.

    Nobody tells an application where it will listen; each connection does.
    """
    if judged.https or judged.plain_http:
        return application

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        host, _ = scope.get("server") or ("", None)
        if _is_loopback(host):
            await application(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            body = f"{_IN_THE_CLEAR} {_BY_TLS}\n".encode()
            headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return serve


@cache
def _is_loopback(host: str) -> bool:
    """Whether a server that listens there is reached from this machine only. A path of a socket is no address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return True
