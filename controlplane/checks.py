"""System checks: what must not be wrong when a process starts, each with an id and a hint.

Django runs the cheap ones at every start and those tagged `database` before it migrates.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

DURABILITY_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes")
BUNDLE = Path(settings.BASE_DIR) / "frontend" / "static" / "frontend" / "main.js"
_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}
_SHORTEST_KEY = 32


def durability_problems(connection: BaseDatabaseWrapper) -> list[str]:
    """Return which of the settings that keep committed rows through a crash are off on this server."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name FROM pg_settings WHERE name = ANY(%s) AND setting = 'off'", [[*DURABILITY_SETTINGS]]
        )
        return [name for (name,) in cursor.fetchall()]


@register(Tags.database)
def durable(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Refuse a database that forgets what it has acknowledged."""
    return [
        Error(
            f"PostgreSQL runs with {name} off: a group whose storing was acknowledged could be lost.",
            hint=f"ALTER SYSTEM SET {name} = on, then SELECT pg_reload_conf().",
            id="controlplane.E001",
        )
        for alias in databases or []
        for name in durability_problems(connections[alias])
    ]


@register(Tags.security)
def closed(**kwargs: Any) -> list[CheckMessage]:
    """Refuse to show stack traces, or to sign with a guessable key, beyond this machine."""
    messages: list[CheckMessage] = []
    if settings.DEBUG and set(settings.ALLOWED_HOSTS) - _LOOPBACK:
        messages.append(
            Error(
                "ROLLYARD_DEBUG is on while other machines may connect: it shows secrets to whoever causes an error.",
                hint="Unset ROLLYARD_DEBUG, or ROLLYARD_ALLOWED_HOSTS.",
                id="controlplane.E002",
            )
        )
    if not settings.DEBUG and "*" in settings.ALLOWED_HOSTS:
        messages.append(
            Error(
                "ROLLYARD_ALLOWED_HOSTS contains *: links in pages could be made to point elsewhere.",
                hint="Name the hosts under which people reach this server.",
                id="controlplane.E003",
            )
        )
    if len(settings.SECRET_KEY) < _SHORTEST_KEY:
        messages.append(
            Error(
                f"ROLLYARD_SECRET_KEY is shorter than {_SHORTEST_KEY} characters: sessions could be forged.",
                hint="Unset it and let ROLLYARD_HOME/secret_key be made, or use a longer one.",
                id="controlplane.E004",
            )
        )
    return messages


@register(Tags.staticfiles)
def bundled(**kwargs: Any) -> list[CheckMessage]:
    """Warn when the pages would come without their styles and scripts."""
    if BUNDLE.exists():
        return []
    return [Warning("The front-end bundle is not built.", hint="make ui", id="controlplane.W001")]
