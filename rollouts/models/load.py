"""What the drivers of a run are busy with: a row each, which it overwrites every other second."""

from django.db import models

from rollouts.models.run import Run


class DriverLoad(models.Model):
    """The sessions of one driver, and what they wait for. Nothing rests on it: it is for people."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="driver_loads", db_index=False)
    holder = models.CharField(max_length=100)
    reported_at = models.DateTimeField()
    """By the database clock."""
    sessions = models.PositiveIntegerField(default=0)
    """Being played."""
    queued = models.PositiveIntegerField(default=0)
    """Requests that wait until fewer tokens are in flight."""
    asking = models.PositiveIntegerField(default=0)
    """Sessions that wait for the policy; the others of those being played are at their environment or tools."""
    scoring = models.PositiveIntegerField(default=0)
    """Sessions that are over and being scored."""
    tokens = models.PositiveBigIntegerField(default=0)
    """In flight: prompts, and what may be sampled to them."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "holder"], name="driver_load_once_per_holder")]

    def __str__(self) -> str:
        return f"{self.holder}: {self.sessions} sessions"
