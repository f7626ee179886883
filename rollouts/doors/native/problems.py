"""Every refusal as ``application/problem+json``: a stable ``code``, a sentence that names the fix, and fields."""

import logging
from typing import Any

import msgspec
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from rollouts import full_disk
from rollouts.errors import ControlPlaneError, DiskFull, NotFound, QueueFull, TooManyFailures
from trainers.config import ConfigError

log = logging.getLogger(__name__)

PROBLEM_JSON = "application/problem+json"
MAX_FIELDS = 50
"""Named in one answer: a body with a hundred thousand faults is not answered with as many."""
UNAVAILABLE_RETRY_S = 1
UNAUTHENTICATED = "Send a token in the header `Authorization: Token ry_...`; `rollyard token create` makes one."


@csrf_exempt
@login_not_required
def no_such_path(request: HttpRequest, path: str = "") -> JsonResponse:
    """The answer to an address that is none of the API's."""
    error = NotFound(f"The API has no path {path!r}; see {reverse('api-schema')}.")
    return JsonResponse(_body(error.status, error.code, error.message), status=error.status, content_type=PROBLEM_JSON)


def handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler. Returns None for what we did not foresee, which is then a logged 500."""
    described = describe(error)
    if described is None:
        return None
    set_rollback()
    status, headers, body = described
    if status == 503:
        log.warning("%s: %s: %s", context["request"].path, type(error).__name__, error)
    return Response(body, status=status, headers=headers, content_type=PROBLEM_JSON)


def describe(error: Exception) -> tuple[int, dict[str, str], dict[str, Any]] | None:
    """(status, headers, problem) of an error; None for what we did not foresee."""
    described = _describe(error)
    if described is None:
        return None
    status, code, detail, fields = described
    body = _body(status, code, detail)
    if fields:
        body["fields"] = dict(list(fields.items())[:MAX_FIELDS])
    if isinstance(error, ConfigError):
        meant = {each.path: each.suggestion for each in error.problems if each.suggestion}
        body["suggestions"] = dict(list(meant.items())[:MAX_FIELDS])
    headers = {}
    if isinstance(error, exceptions.APIException):
        if header := getattr(error, "auth_header", None):
            headers["WWW-Authenticate"] = header
        if wait := getattr(error, "wait", None):
            headers["Retry-After"] = str(int(wait) + 1)
    if isinstance(error, QueueFull | TooManyFailures):
        headers["Retry-After"] = str(error.retry_after_s)
    if status == 503:
        headers["Retry-After"] = str(UNAVAILABLE_RETRY_S)
    return status, headers, body


def _body(status: int, code: str, detail: str) -> dict[str, Any]:
    return {
        "type": f"urn:rollyard:problem:{code}",
        "title": code.replace("_", " "),
        "status": status,
        "code": code,
        "detail": detail,
    }


def _describe(error: Exception) -> tuple[int, str, str, dict[str, str]] | None:
    if isinstance(error, OperationalError | InterfaceError) and (full := full_disk.explain(error)):
        error = DiskFull(full)
    match error:
        case ControlPlaneError():
            return error.status, error.code, error.message, error.fields
        case ConfigError():
            fields: dict[str, str] = {}
            for each in error.problems:
                path = each.path or "config"
                fields[path] = " ".join(filter(None, [fields.get(path), each.sentence]))
            return (
                422,
                "invalid_config",
                "The run config makes no sense; see `fields`.",
                fields,
            )
        case msgspec.ValidationError():
            return 422, "invalid", f"The body does not fit: {error}.", {}
        case msgspec.DecodeError() | UnicodeDecodeError() | RecursionError():
            return 400, "malformed", f"The body cannot be decoded: {error}.", {}
        case RequestDataTooBig():
            return (
                413,
                "too_large",
                "The body is larger than this server takes; send fewer groups at once.",
                {},
            )
        case Http404():
            return (
                404,
                "not_found",
                "There is no such thing, or you may not see it.",
                {},
            )
        case PermissionDenied():
            return (
                403,
                "forbidden",
                "Your role or your token's scopes do not allow this.",
                {},
            )
        case exceptions.NotAuthenticated():
            return error.status_code, "not_authenticated", UNAUTHENTICATED, {}
        case exceptions.ValidationError():
            return 422, "invalid", str(error.detail), {}
        case exceptions.APIException():
            code = error.get_codes()
            return (
                error.status_code,
                code if isinstance(code, str) else "error",
                str(error.detail),
                {},
            )
        case DataError():
            return 422, "invalid", "A value does not fit the database.", {}
        case OperationalError() | InterfaceError():
            return 503, "unavailable", "The database is away or overloaded for a moment; try again.", {}
        case _:
            return None
