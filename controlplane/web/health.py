"""Liveness (this process answers) and readiness (the database and Redis answer it, and the disk has room)."""

import redis
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from rollouts import full_disk

_TIMEOUT_S = 2.0


@login_not_required
@require_safe
def alive(request: HttpRequest) -> JsonResponse:
    """Answer 200 as long as the process serves requests."""
    return JsonResponse({"status": "ok"})


@login_not_required
@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """Answer 200 when requests can succeed, else 503 with what is missing.

    Redis is reported but not required: without the doorbell everything still happens, only later.
    """
    parts = {"database": _database(), "redis": _redis()}
    is_ready = parts["database"] == "ok"
    return JsonResponse({"status": "ok" if is_ready else "unavailable", **parts}, status=200 if is_ready else 503)


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return full_disk.complaint() or f"{type(error).__name__}"
    return full_disk.complaint() or "ok"


def _redis() -> str:
    try:
        with redis.Redis.from_url(
            settings.REDIS_URL, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        ) as client:
            client.ping()
    except redis.RedisError as error:
        return f"{type(error).__name__}"
    return "ok"
