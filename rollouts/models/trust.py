"""Code from elsewhere that an administrator allowed runs to bring along, by name, and what may have a server execute
such. Rows stay: they are the record."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class TrustKind(models.TextChoices):
    """What kind of code; the name says which."""

    REMOTE_CODE = "remote_code", "Python files of a model: `model.trust_remote_code`"
    LOSS = "loss", "A loss function by its dotted path"
    ENVIRONMENT = "environment", "An environment that another package brings"
    ARGUMENT = "argument", "An argument of vLLM that may do more than tune: `inference.arguments`"


class Trust(models.Model):
    """One permission, from when it was given until it was withdrawn."""

    kind = models.CharField(max_length=16, choices=TrustKind.choices)
    name = models.CharField(max_length=500)
    """A model's directory or name on the hub, a dotted path, an environment's name, an argument without its dashes."""
    allowed_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    allowed_actor = models.CharField(max_length=150)
    """``user:<name>`` or ``cli:<account>``; stays when the user is deleted."""
    allowed_at = models.DateTimeField(db_default=Now())
    withdrawn_actor = models.CharField(max_length=150, blank=True)
    withdrawn_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "name"], condition=Q(withdrawn_at__isnull=True), name="trust_once_at_a_time"
            ),
            models.CheckConstraint(condition=Q(kind__in=TrustKind.values), name="trust_kind_known"),
            models.CheckConstraint(
                condition=Q(withdrawn_at__isnull=True) ^ ~Q(withdrawn_actor=""), name="trust_withdrawn_by_somebody"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
