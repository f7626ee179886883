"""One-time login links: how the person who started `rollyard up` gets in without choosing a password first."""

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.models import LoginLink
from controlplane.web import login_token
from rollouts import guesses
from rollouts.errors import TooManyFailures

_SPENT = "This login link was used or has expired. `rollyard login-link` prints another.\n"


def issue(user: User) -> str:
    """Return the path of a link that signs `user` in once, within LOGIN_LINK_TTL."""
    token = login_token.new()
    register(user, login_token.digest(token))
    return reverse("login-link", args=[token])


def register(user: User, token_digest: str) -> None:
    """Store the digest of a token that was made elsewhere; it is good for one login, from now until it expires."""
    LoginLink.objects.filter(expires_at__lte=Now()).delete()
    LoginLink.objects.create(digest=token_digest, user=user, expires_at=timezone.now() + settings.LOGIN_LINK_TTL)


@login_not_required
@never_cache
@require_GET
def redeem(request: HttpRequest, token: str) -> HttpResponse:
    """Sign in the user of the link and forget the link. Of two requests with one link only one succeeds."""
    address = request.META.get("REMOTE_ADDR") or ""
    try:
        guesses.check(address)
    except TooManyFailures as error:
        wait = {"Retry-After": str(error.retry_after_s)}
        return HttpResponse(f"{error.message}\n", status=error.status, content_type="text/plain", headers=wait)
    with transaction.atomic():
        links = LoginLink.objects.filter(digest=login_token.digest(token), expires_at__gt=Now(), user__is_active=True)
        link = links.select_for_update(of=("self",)).select_related("user").first()
        if link is None:
            guesses.failed(address)
            return HttpResponse(_SPENT, status=410, content_type="text/plain")
        link.delete()
    login(request, link.user, backend="django.contrib.auth.backends.ModelBackend")
    return HttpResponseRedirect(settings.LOGIN_REDIRECT_URL)
