"""What is kept of attempts to sign in that failed, how long whoever failed too often waits, and what they are answered.

    AXES_FAILURE_LIMIT failures of an address, or of an account ──► it waits FIRST_WAIT
    each further one of the last AXES_COOLOFF_TIME ───────────────► twice as long, up to LONGEST_WAIT

People type their password where the name belongs, or send it in a field of another name: neither is kept.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Max, Sum
from django.db.models.signals import pre_save
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.crypto import salted_hmac

FIRST_WAIT, LONGEST_WAIT = timedelta(minutes=5), timedelta(hours=1)


class Backoff(AxesDatabaseHandler):  # type: ignore[misc]  # axes has no types
    """Axes' own count, with waits that grow; its own are all equally long."""

    def is_locked(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> bool:
        """Whether the address or the account still has to wait."""
        return self.over_at(request, credentials) > timezone.now()

    def over_at(self, request: HttpRequest, credentials: dict[str, Any] | None) -> datetime:
        """When both may try again; now, if neither has to wait."""
        return max(self._ends(request, credentials), default=timezone.now())

    def reset_user_attempts(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> int:
        """Forget what failed under the name of whoever signed in; axes also forgets whatever their address tried, and
        with any account of one's own one would guess at others without end."""
        count, _ = AccessAttempt.objects.filter(username=counted_name(request, credentials)).delete()
        return int(count)

    def _ends(self, request: HttpRequest, credentials: dict[str, Any] | None) -> Iterator[datetime]:
        for attempts in self.get_user_attempts(request, credentials):
            found = attempts.aggregate(failures=Sum("failures_since_start"), newest=Max("attempt_time"))
            further = (found["failures"] or 0) - settings.AXES_FAILURE_LIMIT
            if further >= 0:
                yield found["newest"] + min(FIRST_WAIT * 2 ** min(further, 10), LONGEST_WAIT)


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
    wait_s = max(1, round((Backoff().over_at(request, credentials) - timezone.now()).total_seconds()))
    page = render(request, "registration/login.html", {"wait_min": -(-wait_s // 60)}, status=429)
    page["Retry-After"] = str(wait_s)
    return page
