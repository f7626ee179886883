"""Trust: which code from elsewhere runs may execute. For administrators of the installation, whose machines it is."""

from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from frontend.access import actor, page
from rollouts.errors import Conflict, Invalid, NotFound
from rollouts.models import Trust, TrustKind
from rollouts.services import trust


@page
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """What is allowed and what once was, and a form that may be filled in by a link (`?kind=...&name=...`)."""
    _administrator(request)
    context = {
        "allowed": Trust.objects.filter(withdrawn_at__isnull=True),
        "withdrawn": Trust.objects.filter(withdrawn_at__isnull=False)[:100],
        "kinds": TrustKind.choices,
        "kind": request.GET.get("kind", ""),
        "name": request.GET.get("name", ""),
    }
    return render(request, "trust/index.html", context)


@page
@require_POST
def allow(request: HttpRequest) -> HttpResponse:
    """Allow what the form names."""
    user = _administrator(request)
    kind, name = request.POST.get("kind", ""), request.POST.get("name", "").strip()
    try:
        trust.allow(kind, name, actor=actor(request), user=user)
        messages.success(request, f"Runs may execute {name} now.")
    except Conflict as error:
        messages.info(request, error.message)
    except Invalid as error:
        messages.error(request, " ".join([error.message, *(f"{key} {fault}." for key, fault in error.fields.items())]))
        return HttpResponseRedirect(f"{reverse('trust')}?{urlencode({'kind': kind, 'name': name})}")
    return HttpResponseRedirect(reverse("trust"))


@page
@require_POST
def withdraw(request: HttpRequest) -> HttpResponse:
    """Withdraw what the form names."""
    _administrator(request)
    kind, name = request.POST.get("kind", ""), request.POST.get("name", "")
    try:
        trust.withdraw(kind, name, actor=actor(request))
        messages.success(request, f"Runs may not execute {name} any more; those that do are ended.")
    except (Invalid, NotFound) as error:
        messages.error(request, error.message)
    return HttpResponseRedirect(reverse("trust"))


def _administrator(request: HttpRequest) -> User:
    user = request.user
    if not isinstance(user, User) or not user.is_superuser:
        raise PermissionDenied("Trusting code needs an administrator of this installation.")
    return user
