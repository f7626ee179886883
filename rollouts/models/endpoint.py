"""Models of others that an administrator lets runs and evaluations ask, by name. Rows stay: they are the record."""

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from environments.endpoints import address, keys
from rollouts.models.access import Project

NAME = r"^[a-z0-9][a-z0-9-]{0,63}\Z"
MAX_IN_FLIGHT = 1_024
MAX_TIMEOUT_S = 600


class Endpoint(models.Model):
    """One address and model, from when it was added until it was removed; it is never changed in between."""

    name = models.CharField(max_length=64, validators=[RegexValidator(NAME)])
    """What configs say; one at a time has it."""
    base_url = models.CharField(max_length=address.MAX_URL)
    model = models.CharField(max_length=200)
    """What the server calls the model."""
    key_reference = models.CharField(max_length=keys.MAX_REFERENCE, blank=True)
    """Where the key is found (`environments/endpoints/keys.py`). The key itself is in no table."""
    max_in_flight = models.PositiveIntegerField(
        default=8, validators=[MinValueValidator(1), MaxValueValidator(MAX_IN_FLIGHT)]
    )
    """Requests that one driver has there at a time."""
    timeout_s = models.PositiveIntegerField(
        default=60, validators=[MinValueValidator(1), MaxValueValidator(MAX_TIMEOUT_S)]
    )
    """For one request."""
    is_for_all = models.BooleanField(default=False)
    """Whether every project may name it."""
    projects = models.ManyToManyField(Project, blank=True, related_name="endpoints")
    """Those that may, unless all may."""
    note = models.CharField(max_length=500, blank=True)
    added_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    added_actor = models.CharField(max_length=150)
    """``user:<name>`` or ``cli:<account>``; stays when the user is deleted."""
    added_at = models.DateTimeField(db_default=Now())
    removed_actor = models.CharField(max_length=150, blank=True)
    removed_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["name"], condition=Q(removed_at__isnull=True), name="endpoint_name_once_at_a_time"
            ),
            models.CheckConstraint(condition=Q(name__regex=NAME), name="endpoint_name_plain"),
            models.CheckConstraint(
                condition=Q(key_reference__regex=keys.REFERENCE), name="endpoint_key_is_a_reference"
            ),
            models.CheckConstraint(
                condition=Q(max_in_flight__range=(1, MAX_IN_FLIGHT), timeout_s__range=(1, MAX_TIMEOUT_S)),
                name="endpoint_bounded",
            ),
            models.CheckConstraint(
                condition=Q(removed_at__isnull=True) ^ ~Q(removed_actor=""), name="endpoint_removed_by_somebody"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.model})"
