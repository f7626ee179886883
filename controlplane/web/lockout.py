"""What is kept of attempts to sign in that failed, and what is answered to whoever failed too often.

People type their password where the name belongs, or send it in a field of another name: neither is kept.
"""

from typing import Any

from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Max, Q
from django.db.models.signals import pre_save
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.crypto import salted_hmac


def counted_name(request: HttpRequest, credentials: dict[str, Any] | None = None) -> str | None:
    """Under which name failures count: an account's own; of what is no account's a digest, which tells nothing."""
    name: str | None = (credentials or request.POST).get("username")
    if not name or ("\0" not in name and User.objects.filter(username=name).exists()):
        return name
    return f"no account: {salted_hmac('controlplane.web.lockout', name, algorithm='sha256').hexdigest()[:32]}"


@receiver(pre_save, sender=AccessAttempt)
def forget_form(instance: AccessAttempt, **_: Any) -> None:
    """Keep nothing of what was sent: axes leaves out one field by its name, and a password may be in any."""
    instance.get_data = instance.post_data = ""


def locked_out(request: HttpRequest, _response: HttpResponse, credentials: dict[str, Any] | None) -> HttpResponse:
    """The sign-in page, which says when to come back."""
    of_this = Q(ip_address=request.META.get("REMOTE_ADDR"))
    if username := counted_name(request, credentials):
        of_this |= Q(username=username)
    newest = AccessAttempt.objects.filter(of_this).aggregate(newest=Max("attempt_time"))["newest"]
    over_at = (newest or timezone.now()) + settings.AXES_COOLOFF_TIME
    wait_s = max(1, round((over_at - timezone.now()).total_seconds()))
    page = render(request, "registration/login.html", {"wait_min": -(-wait_s // 60)}, status=429)
    page["Retry-After"] = str(wait_s)
    return page
