"""Settings under which no process may answer anybody, each with its fix. Needs no Django: the supervisor asks too."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
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


def debug(environ: Mapping[str, str]) -> bool:
    """Whether errors are shown with their stack, as these variables say."""
    return environ.get("ROLLYARD_DEBUG", "").strip().lower() in _YES


def hosts(environ: Mapping[str, str]) -> list[str]:
    """The names under which people reach this server, as these variables say."""
    return [*_LOOPBACK, *(each for each in environ.get("ROLLYARD_ALLOWED_HOSTS", "").split(",") if each)]


def refusals(*, debug: bool, hosts: Collection[str], secret_key: str) -> list[Refusal]:
    """What is wrong with these settings."""
    found = []
    if debug and set(hosts).difference(_LOOPBACK):
        what = "ROLLYARD_DEBUG is on while other machines may connect: it shows secrets to whoever causes an error."
        found.append(Refusal(what, "Unset ROLLYARD_DEBUG, or listen on this machine only.", "controlplane.E002"))
    if "*" in hosts:
        what = "ROLLYARD_ALLOWED_HOSTS contains *: links in pages could be made to point elsewhere."
        found.append(Refusal(what, "Name the hosts under which people reach this server.", "controlplane.E003"))
    if len(secret_key) < _SHORTEST_KEY or len(set(secret_key)) < _SHORTEST_KEY // 4:
        what = (
            f"ROLLYARD_SECRET_KEY has less than {_SHORTEST_KEY} characters, or few different: sessions can be forged."
        )
        found.append(Refusal(what, "Unset it and let ROLLYARD_HOME/secret_key be made.", "controlplane.E004"))
    return found


def refuse_unsafe(*, debug: bool, hosts: Collection[str], secret_key: str) -> None:
    """Raise UnsafeSettings for settings under which nobody may be answered."""
    if found := refusals(debug=debug, hosts=hosts, secret_key=secret_key):
        raise UnsafeSettings("\n".join(map(str, found)))
