"""Pages that cannot be answered at this moment say why: too much to do, or a database without room or away.

Why one is broken is in the log.
"""

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.utils.log import log_response
from django.views import defaults

from controlplane.web.nul import Handler
from rollouts import full_disk
from rollouts.errors import DiskFull, Unavailable


class UnavailablePages:
    """Middleware: 503, when to come again and why. The API has its own words for it."""

    def __init__(self, get_response: Handler) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, _request: HttpRequest, error: Exception) -> HttpResponse | None:
        """The answer to a view that cannot do its work; None for an error of ours."""
        if isinstance(error, OperationalError | InterfaceError) and (full := full_disk.explain(error)):
            error = DiskFull(full)
        if not isinstance(error, Unavailable):
            return None
        again = {"Retry-After": str(error.retry_after_s)}
        return HttpResponse(f"{error.message}\n", status=error.status, headers=again, content_type="text/plain")


def broken(request: HttpRequest) -> HttpResponse:
    """Django's page of an error of ours, which is logged here: Django logs none that another error's page broke by."""
    answer = defaults.server_error(request)
    words = answer.reason_phrase, request.path
    log_response("%s: %s", *words, response=answer, request=request, exception=sys.exception())
    return answer
