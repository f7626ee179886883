"""What of a machine is promised to whom."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from rollouts.models.run import Run


class Placement(models.Model):
    """A GPU of a machine that a run has for itself, from before it begins until nothing of it is left."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="placements")
    host = models.CharField(max_length=255)
    gpu = models.CharField(max_length=64)
    """As CUDA_VISIBLE_DEVICES names it."""
    promised_at = models.DateTimeField(db_default=Now())
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host", "gpu"], condition=Q(released_at__isnull=True), name="placement_gpu_promised_once"
            )
        ]

    def __str__(self) -> str:
        return f"GPU {self.gpu} of {self.host}"
