"""What a worker on another machine is given: the ways to the store, and the control plane's secrets."""

import json
import os
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from django.conf import settings

from environments.endpoints import keys
from rollouts.services import endpoints
from workers.fleet import hub
from workers.fleet.keys import key_of_lines
from workers.remote import CACHES, PASSED
from workers.slurm.templates import Template, WorkerPool

_TLS = {"require", "verify-ca", "verify-full"}


class NoWay(Exception):
    """Workers on other machines do not reach the store; the message says what to set."""


def given(pool: WorkerPool, template: Template) -> dict[str, Any]:
    """All of it, as `remote.work` takes it. Raises NoWay."""
    return {
        "environ": _environ(pool.connections, template),
        "lines": _lines(),
        "hours": pool.hours or template.hours,
        "concurrency": pool.concurrency,
    }


def _environ(connections: int, template: Template) -> dict[str, str]:
    """What the template says of the nodes is theirs, and stays."""
    told = {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "ROLLYARD_SECRET_KEY": settings.SECRET_KEY,
        "ROLLYARD_URL": settings.ROLLYARD_URL,
        "ROLLYARD_NODES_URL": settings.NODES_URL,
        "ROLLYARD_DATABASE_POOL_SIZE": str(connections),
        # Celery warns root at every start; here root is what the person chose, and the messages are JSON.
        "PYTHONWARNINGS": "ignore:You're running the worker",
    }
    named = ["DATABASE_URL", "REDIS_URL", *PASSED, *keys.variables(endpoints.references())]
    told |= {name: os.environ[name] for name in named if os.environ.get(name)}
    if template.shared:
        told |= {"ROLLYARD_HOME": str(settings.ROLLYARD_HOME)}
        if "ROLLYARD_HOME" not in template.environment:
            told["ROLLYARD_RUNS_DIR"] = str(settings.ROLLYARD_RUNS_DIR)
        if not template.environment.keys() & set(CACHES):
            told["HF_HUB_CACHE"] = str(hub.cache())
    return {name: value for name, value in told.items() if name not in template.environment}


def _lines() -> dict[str, Any] | None:
    """The way to the embedded servers; None where both are servers of their own, which are reached as they are."""
    database, redis = os.environ.get("DATABASE_URL", ""), os.environ.get("REDIS_URL", "")
    if database and redis:
        if parse_qs(urlsplit(database).query).get("sslmode", [""])[0] not in _TLS:
            raise NoWay(
                "DATABASE_URL goes over the network in the clear: add ?sslmode=verify-full&sslrootcert=FILE to it"
            )
        if urlsplit(redis).scheme != "rediss":
            raise NoWay("REDIS_URL goes over the network in the clear: write rediss://")
        return None
    home = settings.HOME
    try:
        address = json.loads(home.record_file.read_text())["lines"]
        certificate = home.certificate_file.read_text()
    except (OSError, ValueError, KeyError):
        address = None
    if not address:
        raise NoWay(
            "workers reach the embedded servers by `rollyard up --lines-port auto`, or set DATABASE_URL and REDIS_URL"
        )
    role, name = settings.DATABASES["default"]["USER"], settings.DATABASES["default"]["NAME"]
    passwords = [quote(each, safe="") for each in (home.database_password(role), home.redis_password())]
    return {
        "address": address,
        "certificate": certificate,
        "key": key_of_lines(),
        "database": f"postgresql://{role}:{passwords[0]}@/{name}?host={{place}}",
        "redis": f"unix://:{passwords[1]}@{{place}}/redis.sock?db=0",
    }
