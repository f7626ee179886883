"""System checks: what must not be wrong when a process starts, each with an id and a hint.

Django runs the cheap ones at every start and those tagged `database` before it migrates.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from controlplane import safety

DURABILITY_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes")
BUNDLE = Path(settings.BASE_DIR) / "frontend" / "static" / "frontend" / "main.js"


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
    """Name what `safety` refuses to start with."""
    judged = safety.installation(
        os.environ, home=settings.HOME.path, secret_key=settings.SECRET_KEY, https=settings.HTTPS, serves=False
    )
    return [Error(each.what, hint=each.fix, id=each.id) for each in safety.refusals(judged)]


@register(Tags.staticfiles)
def bundled(**kwargs: Any) -> list[CheckMessage]:
    """Warn when the pages would come without their styles and scripts."""
    if BUNDLE.exists():
        return []
    return [Warning("The front-end bundle is not built.", hint="make ui", id="controlplane.W001")]
