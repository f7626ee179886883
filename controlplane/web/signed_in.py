"""Pages are for who is signed in, and who works is not signed out; a form that comes too late says so.

form of nobody ──► the sign-in page, which says that nothing was stored ──► the page that the form is on
page of a day  ──► its session lasts for SESSION_COOKIE_AGE from now: one write a day
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.signals import user_logged_in
from django.contrib.auth.views import redirect_to_login
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme

View = Callable[..., HttpResponseBase]
_DAY = "day"
"""In a session: that from which it lasts."""


class SignedIn(LoginRequiredMiddleware):
    """Middleware: nobody else sees a page or sends a form; but for views that say otherwise, such as the API's."""

    def process_view(
        self, request: HttpRequest, view_func: View, view_args: tuple[Any, ...], view_kwargs: dict[Any, Any]
    ) -> HttpResponseBase | None:
        """Send who is not signed in to the sign-in page, and let the session of who is last on."""
        if getattr(view_func, "login_required", True) and request.user.is_authenticated:
            # A page that follows a run asks for its parts whether or not somebody sits before it.
            if "HX-Request" not in request.headers and request.session.get(_DAY) != _today():
                request.session[_DAY] = _today()
            return None
        return super().process_view(request, view_func, view_args, view_kwargs)

    def handle_no_permission(self, request: HttpRequest, view_func: View) -> HttpResponseRedirect:
        """Of a form not where it was sent, which is no page to come back to, but where it stands."""
        if request.method != "POST":
            return super().handle_no_permission(request, view_func)
        messages.error(request, "Nothing was stored: your session had ended.")
        return redirect_to_login(_page_of_form(request), self.get_login_url(view_func))


@receiver(user_logged_in)
def _begin(request: HttpRequest, **_: Any) -> None:
    request.session[_DAY] = _today()


def _today() -> str:
    return timezone.now().date().isoformat()


def _page_of_form(request: HttpRequest) -> str:
    """The page that the form was sent from, if it is one of ours; else the first of all."""
    page, hosts = request.headers.get("Referer", ""), {request.get_host()}
    if not url_has_allowed_host_and_scheme(page, hosts, require_https=request.is_secure()):
        return settings.LOGIN_REDIRECT_URL
    return urlsplit(page)._replace(scheme="", netloc="", fragment="").geturl()
