"""What is answered to whoever failed to sign in too often."""

from typing import Any

from axes.models import AccessAttempt
from django.conf import settings
from django.db.models import Max, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone


def locked_out(request: HttpRequest, _response: HttpResponse, credentials: dict[str, Any] | None) -> HttpResponse:
    """The sign-in page, which says when to come back."""
    of_this = Q(ip_address=request.META.get("REMOTE_ADDR"))
    if username := (credentials or {}).get("username"):
        of_this |= Q(username=username)
    newest = AccessAttempt.objects.filter(of_this).aggregate(newest=Max("attempt_time"))["newest"]
    over_at = (newest or timezone.now()) + settings.AXES_COOLOFF_TIME
    wait_s = max(1, round((over_at - timezone.now()).total_seconds()))
    page = render(request, "registration/login.html", {"wait_min": -(-wait_s // 60)}, status=429)
    page["Retry-After"] = str(wait_s)
    return page
