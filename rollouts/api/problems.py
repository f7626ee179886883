"""Every refusal as ``application/problem+json``: a stable ``code``, a sentence that names the fix, and fields."""

from typing import Any

import msgspec
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from rollouts.errors import ControlPlaneError
from trainers.config import ConfigError

PROBLEM_JSON = "application/problem+json"


def handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler. Returns None for what we did not foresee, which is then a logged 500."""
    described = _describe(error)
    if described is None:
        return None
    set_rollback()
    status, code, detail, fields = described
    body: dict[str, Any] = {
        "type": f"urn:rollyard:problem:{code}",
        "title": code.replace("_", " "),
        "status": status,
        "code": code,
        "detail": detail,
    }
    if fields:
        body["fields"] = fields
    response = Response(body, status=status, content_type=PROBLEM_JSON)
    if isinstance(error, exceptions.APIException):
        if header := getattr(error, "auth_header", None):
            response["WWW-Authenticate"] = header
        if wait := getattr(error, "wait", None):
            response["Retry-After"] = str(int(wait) + 1)
    return response


def _describe(error: Exception) -> tuple[int, str, str, dict[str, str]] | None:
    match error:
        case ControlPlaneError():
            return error.status, error.code, error.message, error.fields
        case ConfigError():
            fields = {path or "config": message for path, message in error.problems}
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
        case _:
            return None
