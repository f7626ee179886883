"""The way into a run's Atropos-compatible API."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone

from rollouts.models.run import Run, new_atropos_key

DEFAULT_DAYS = 30
MOST_DAYS = 365


def default_expiry() -> datetime:
    """When an address expires for which nobody said it."""
    return timezone.now() + timedelta(days=DEFAULT_DAYS)


class Address(models.Model):
    """What unmodified Atropos clients call, and who answers for them: they have no account, only the key.

    A row of its own, as its last use is noted while others hold the run's. Supervised runs have none. Written by
    ``services.runs.addresses``.
    """

    run = models.OneToOneField(Run, primary_key=True, on_delete=models.CASCADE, related_name="address")
    key = models.CharField(max_length=64, unique=True, default=new_atropos_key, editable=False)
    """Path under /atropos/; see ``rollouts.doors.atropos``."""
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    """Who made, changed or renewed it last. It opens the run for as long as they may operate it."""
    expires_at = models.DateTimeField(default=default_expiry)
    used_at = models.DateTimeField(null=True)
    """The newest request, to the minute."""
    resets_on_get = models.BooleanField(default=False)
    """For old clients: whether `GET /reset_data` closes the attempt, as with Atropos. `POST` always does."""

    def __str__(self) -> str:
        return f"Atropos address of {self.run}"

    @property
    def url(self) -> str:
        """Base URL of the API. Whoever has it may feed the run and train it."""
        return f"{settings.ROLLYARD_URL}/atropos/{self.key}"

    @property
    def is_expired(self) -> bool:
        return self.expires_at <= timezone.now()
