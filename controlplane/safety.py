"""Settings under which no process may answer anybody, each with its fix. Needs no Django: the supervisor asks too."""

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from environments import unconfined

PLAIN_HTTP_VARIABLE = "ROLLYARD_UNSAFE_PLAIN_HTTP"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_TEST_CLIENT = "testserver"
"""Django's name for itself in tests."""
_YES = {"1", "true", "on", "yes", "y", "ok"}
_SHORTEST_KEY = 32


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
    confined: bool
    """Whether code of runs lives in sandboxes."""

    @property
    def is_reached_from_elsewhere(self) -> bool:
        """Whether a name is none of this machine's own."""
        return bool(set(self.hosts).difference((*_LOOPBACK, _TEST_CLIENT)))


def installation(
    environ: Mapping[str, str], *, home: Path, secret_key: str, hosts: Collection[str] = (), https: bool | None = None
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
        confined=not unconfined.is_unconfined(),
    )


def flag(environ: Mapping[str, str], name: str) -> bool:
    """Whether a variable says yes."""
    return environ.get(name, "").strip().lower() in _YES


def hosts_of(environ: Mapping[str, str]) -> list[str]:
    """The names under which people reach this server, as these variables say."""
    return [*_LOOPBACK, *(each for each in environ.get("ROLLYARD_ALLOWED_HOSTS", "").split(",") if each)]


def refusals(judged: Installation) -> list[Refusal]:
    """What is wrong with these settings."""
    found = []

    def refuse(number: int, what: str, fix: str) -> None:
        found.append(Refusal(what, fix, f"controlplane.E{number:03}"))

    if judged.debug and judged.is_reached_from_elsewhere:
        what = "ROLLYARD_DEBUG is on while other machines may connect: it shows secrets to whoever causes an error."
        refuse(2, what, "Unset ROLLYARD_DEBUG, or listen on this machine only.")
    if "*" in judged.hosts:
        what = "ROLLYARD_ALLOWED_HOSTS contains *: links in pages could be made to point elsewhere."
        refuse(3, what, "Name the hosts under which people reach this server.")
    if len(judged.secret_key) < _SHORTEST_KEY or len(set(judged.secret_key)) < _SHORTEST_KEY // 4:
        what = (
            f"ROLLYARD_SECRET_KEY has less than {_SHORTEST_KEY} characters, or few different: sessions can be forged."
        )
        refuse(4, what, "Unset it and let ROLLYARD_HOME/secret_key be made.")
    if judged.is_reached_from_elsewhere and not judged.https and not judged.plain_http:
        what = "Other machines may connect over plain HTTP: passwords, cookies and keys pass in the clear."
        fix = "Put a proxy that speaks TLS before it and set ROLLYARD_HTTPS=1, or listen on this machine only;"
        refuse(5, what, f"{fix} {PLAIN_HTTP_VARIABLE}=1 is for a network where nobody listens.")
    if (open_path := find_open(judged.home)) is not None:
        what = f"{open_path} can be read by other accounts: it holds keys, or what opens them."
        refuse(6, what, f"chmod -R go-rwx {open_path}")
    if not judged.confined and os.geteuid() == 0:
        what = f"{unconfined.VARIABLE} is set for root: the code of every run would be root on this machine."
        refuse(7, what, "Unset it, or start Rollyard as another account.")
    return found


def find_open(home: Path) -> Path | None:
    """What of a home others may look into: the directory itself, or its key. None: nothing."""
    for path in (home, home / "secret_key"):
        try:
            mode = path.stat().st_mode
        except OSError:
            continue
        if mode & (stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH):
            return path
    return None


def refuse_unsafe(judged: Installation) -> None:
    """Raise UnsafeSettings for settings under which nobody may be answered."""
    if found := refusals(judged):
        raise UnsafeSettings("\n".join(map(str, found)))
