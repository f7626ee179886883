"""What every view needs: the user's run, or the right refusal."""

from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string

from rollouts.errors import Forbidden, NotFound, Unavailable
from rollouts.models import Role, Run
from rollouts.selectors import runs

View = Callable[..., HttpResponse]


def page(view: View) -> View:
    """Turn the store's refusals into answers: a foreign object is a 404, a missing role a 403, too much work a 503."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            found = view(request, *args, **kwargs)
        except NotFound as error:
            raise Http404(error.message) from None
        except Forbidden as error:
            raise PermissionDenied(error.message) from None
        except Unavailable as error:
            again = {"Retry-After": str(error.retry_after_s)}
            return HttpResponse(error.message, status=error.status, headers=again, content_type="text/plain")
        if found.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            found.content = render_to_string("405.html", request=request)  # Django's is an empty page
        return found

    return answer


def may_operate(request: HttpRequest, run: Run) -> bool:
    """Whether the user may stop and clone this run. One query."""
    return runs.for_user(request.user, Role.OPERATOR).filter(pk=run.pk).exists()


def may_curate(request: HttpRequest, run: Run) -> bool:
    """Whether the user may label groups of this run, and reject them. One query."""
    return runs.for_user(request.user, Role.CURATOR).filter(pk=run.pk).exists()


def actor(request: HttpRequest) -> str:
    """How the user is named in events."""
    return f"user:{request.user.get_username()}"
