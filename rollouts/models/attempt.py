"""Who takes part in a run over the Atropos-compatible API: trainers, environments, and batches on their way."""

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from rollouts.models.batch import Batch
from rollouts.models.run import Run, RunEnvironment


class Attempt(models.Model):
    """One trainer's registration, until somebody resets. Written by ``services.attempts``.

    What Atropos forgets on a reset lives here: the run itself, its groups and batches remain.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    """Counted from 1 within the run."""
    opened_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    """First request for a batch: from then on environments may register."""
    closed_at = models.DateTimeField(null=True)
    first_step = models.PositiveIntegerField(null=True)
    """Step of its first batch; null before there is one."""

    wandb_group = models.TextField(blank=True)
    wandb_project = models.TextField(blank=True)
    batch_size = models.PositiveIntegerField()
    """Sequences per batch, exactly."""
    max_token_len = models.BigIntegerField()
    """Limit that environments are told; 0 or less is none."""
    checkpoint_dir = models.TextField(blank=True)
    save_checkpoint_interval = models.BigIntegerField()
    starting_step = models.BigIntegerField()
    """Step the trainer says it starts at; environments see this plus the batches handed out."""
    num_steps = models.BigIntegerField()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["run", "number"], name="attempt_number_once_per_run"),
            models.UniqueConstraint(
                fields=["run"], condition=Q(closed_at__isnull=True), name="attempt_one_open_per_run"
            ),
            models.CheckConstraint(condition=Q(batch_size__gt=0), name="attempt_batch_size_positive"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number}"


class EnvironmentClient(models.Model):
    """One registration of an environment process. Several may play the same environment."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="clients")
    index = models.PositiveIntegerField()
    """The `env_id` that the process calls itself by."""
    environment = models.ForeignKey(RunEnvironment, on_delete=models.PROTECT, related_name="clients")
    wandb_name = models.TextField()
    max_token_length = models.BigIntegerField()
    weight = models.FloatField()
    group_size = models.IntegerField()
    """Sequences per group, as it says."""
    batch_size = models.PositiveIntegerField()
    """Sequences per batch, as it knows: of the attempt it registered in. It asks once and goes by that for ever."""
    min_batch_allocation = models.FloatField(null=True)
    """Share of every batch that must be of this environment; lapses while the process is silent."""
    is_connected = models.BooleanField(default=True)
    registered_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())
    """Last request, to within ``services.attempts.HEARTBEAT_S``."""
    lapsed_at = models.DateTimeField(null=True)
    """When its allocation lapsed; null: it counts."""

    class Meta:
        ordering = ["attempt", "index"]
        constraints = [
            models.UniqueConstraint(fields=["attempt", "index"], name="client_index_once_per_attempt"),
            models.CheckConstraint(condition=Q(weight__gte=-1e30, weight__lte=1e30), name="client_weight_finite"),
        ]

    def __str__(self) -> str:
        return self.wandb_name


class Delivery(models.Model):
    """A batch on its way to a trainer that cannot acknowledge: leased while it is sent, given again if it broke off."""

    batch = models.OneToOneField(Batch, primary_key=True, on_delete=models.CASCADE, related_name="delivery")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="deliveries")
    token = models.UUIDField(default=uuid.uuid4)
    """New each time it is given: a sender that lost it can neither renew nor finish it."""
    taken_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    """By the database clock; renewed while it is being sent."""
    sent_at = models.DateTimeField(null=True)
    """When all of it was handed to the connection."""
    abandoned_at = models.DateTimeField(null=True)
    """When a reset ended it instead: its step is over, and its groups are archived."""

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [
            models.CheckConstraint(
                condition=Q(sent_at__isnull=True) | Q(abandoned_at__isnull=True), name="delivery_sent_or_abandoned"
            ),
        ]
        indexes = [
            models.Index(
                fields=["attempt", "batch"],
                condition=Q(sent_at__isnull=True, abandoned_at__isnull=True),
                name="delivery_under_way",
            ),
        ]

    def __str__(self) -> str:
        return f"delivery of {self.batch_id}"
