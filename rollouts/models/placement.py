"""What of a machine is promised to whom."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from rollouts.models.run import Run


class PlacementKind(models.TextChoices):
    """What is promised."""

    GPU = "gpu", "GPU"
    CORE = "core", "core"
    MEMORY = "memory", "GiB of memory"


class Placement(models.Model):
    """A unit of this machine that a run has for itself, from before it begins until nothing of it is left."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="placements")
    host = models.CharField(max_length=255)
    """What the machine was called: a container that is made again has another name, and the same GPUs."""
    kind = models.CharField(max_length=8, choices=PlacementKind.choices)
    unit = models.CharField(max_length=64)
    """A GPU as CUDA_VISIBLE_DEVICES names it, a core by its number; GiB are numbered too, though they have no place."""
    promised_at = models.DateTimeField(db_default=Now())
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "unit"], condition=Q(released_at__isnull=True), name="placement_promised_once"
            ),
            models.CheckConstraint(condition=Q(kind__in=PlacementKind.values), name="placement_kind_known"),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.unit} of {self.host}"
