"""What happened, append-only: metric points and events."""

from django.db import models
from django.db.models.functions import Now

from rollouts.models.group import finite
from rollouts.models.run import Run
from rollouts.models.stateful import Reasoned


class MetricPoint(models.Model):
    """(run, key, step, value). A step that is trained again after a resume overwrites its point."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="metric_points", db_index=False)
    key = models.CharField(max_length=100)
    """``area/name``, e.g. ``reward/mean``."""
    step = models.PositiveIntegerField()
    value = models.FloatField()
    recorded_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "key", "step"], name="metric_point_once_per_step"),
            finite("value", "metric_point_finite"),
        ]

    def __str__(self) -> str:
        return f"{self.key}[{self.step}] = {self.value:.4g}"


COUNTED_KINDS = ["scoredgroup", "batch"]
"""Objects whose every change is an event, which pages count instead of showing: nearly all events of a long run."""


class EventKind(models.TextChoices):
    """What an event says of its object. Told by its two states, so it needs no column."""

    CREATED = "created", "It is there since, in the state it began in."
    CHANGED = "changed", "It went from one state to another."
    NOTED = "noted", "Something happened to it that changed no state: both states are the one it was in."


class Event(Reasoned):
    """What changed state, or happened else, when, by whom and why. Its id is the sequence number that pages show."""

    run = models.ForeignKey(Run, null=True, on_delete=models.CASCADE, related_name="events", db_index=False)
    """None: its object belongs to no run, as an export does."""
    at = models.DateTimeField(db_default=Now())
    object_kind = models.CharField(max_length=32)
    object_id = models.BigIntegerField()
    from_state = models.CharField(max_length=16, blank=True)
    """Empty when the object was created."""
    to_state = models.CharField(max_length=16)
    actor = models.CharField(max_length=150, blank=True)
    """``user:<name>``, ``reconciler``, ``driver:<worker>``, ``trainer:<epoch>``, ``api:<token name>``."""

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["run", "-id"], name="event_by_run"),
            models.Index(fields=["object_kind", "object_id"], name="event_by_object"),
            # Of the few that pages show: between two of them there may be millions.
            models.Index(
                fields=["run", "-id"], condition=~models.Q(object_kind__in=COUNTED_KINDS), name="event_shown_by_run"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.object_kind} {self.object_id}: {self.from_state or '-'} -> {self.to_state}"

    @property
    def kind(self) -> EventKind:
        """Whether its object was created, changed its state, or only something happened to it."""
        if not self.from_state:
            return EventKind.CREATED
        return EventKind.NOTED if self.from_state == self.to_state else EventKind.CHANGED
