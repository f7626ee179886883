"""Who takes part in a run over the Atropos-compatible API: trainers, environments, and batches on their way."""

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from rollouts.models.batch import Batch
from rollouts.models.run import Run, RunEnvironment
from rollouts.models.stateful import Stateful, known_state, set_exactly_in
from rollouts.states import AttemptState, ClientState


class Attempt(Stateful):
    """One trainer's registration, until somebody resets. Written by ``services.outside.attempts``.

    What Atropos forgets on a reset lives here: the run itself, its groups and batches remain.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    """Counted from 1 within the run."""
    state = models.CharField(
        max_length=16, choices=[(s.value, s.value) for s in AttemptState], default=AttemptState.OPEN
    )
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
            known_state(AttemptState, "attempt_state_known"),
            models.CheckConstraint(
                condition=Q(state=AttemptState.OPEN, started_at__isnull=True)
                | Q(state=AttemptState.STARTED, started_at__isnull=False)
                | Q(state=AttemptState.CLOSED),
                name="attempt_started_at_once_started",
            ),
            set_exactly_in("closed_at", [AttemptState.CLOSED], "attempt_closed_at_exactly_when_closed"),
            models.UniqueConstraint(fields=["run", "number"], name="attempt_number_once_per_run"),
            models.UniqueConstraint(
                fields=["run"], condition=Q(closed_at__isnull=True), name="attempt_one_open_per_run"
            ),
            models.CheckConstraint(condition=Q(batch_size__gt=0), name="attempt_batch_size_positive"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number}"


class EnvironmentClient(Stateful):
    """One registration of an environment process. Several may play the same environment.

    Written by ``services.outside.clients``. What its state says holds as long as its attempt is not closed.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="clients")
    index = models.PositiveIntegerField()
    """The `env_id` that the process calls itself by."""
    state = models.CharField(
        max_length=16, choices=[(s.value, s.value) for s in ClientState], default=ClientState.CONNECTED
    )
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
    registered_at = models.DateTimeField(db_default=Now())
    seen_at = models.DateTimeField(db_default=Now())
    """Last request, to within ``services.outside.attempts.HEARTBEAT_S``."""
    lapsed_at = models.DateTimeField(null=True)
    """When its allocation lapsed."""

    class Meta:
        ordering = ["attempt", "index"]
        constraints = [
            known_state(ClientState, "client_state_known"),
            set_exactly_in("lapsed_at", [ClientState.LAPSED], "client_lapsed_at_exactly_when_lapsed"),
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
    """When a reset, or a trainer of another protocol, ended it instead: its step is over, its groups are archived."""

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
