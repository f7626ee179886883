"""Episodes that programs outside play against the live policy."""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from rollouts.models.ordered import OrderedJSONField
from rollouts.models.run import Run
from rollouts.storable import MAX_ENVIRONMENT, MAX_ENVIRONMENT_VERSION, MAX_KEY


class AgentSession(models.Model):
    """One episode from outside: who may play it, for how long, and what it left.

    Finished once, then a member of a group that is submitted once; never changed after that. Written by
    ``services.outside.sessions``.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="agent_sessions", db_index=False)
    name = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    key_digest = models.CharField(max_length=64, unique=True, editable=False)
    """SHA-256 of its key, which is stored nowhere."""
    group_key = models.CharField(max_length=MAX_KEY)
    """Sessions of one problem with the same are scored against each other."""
    group_size = models.PositiveSmallIntegerField()
    environment = models.CharField(max_length=MAX_ENVIRONMENT)
    environment_version = models.CharField(max_length=MAX_ENVIRONMENT_VERSION, blank=True)
    problem = OrderedJSONField()
    """`key`, `messages` and `tools`."""
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    """Who opened it, and answers for it: it is played for as long as they may operate the run."""
    actor = models.CharField(max_length=150)
    """Their name, or their token's, in events."""
    opened_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()
    """Not finished until then, it has failed."""
    finished_at = models.DateTimeField(null=True)
    record = models.BinaryField(null=True)
    """The PlayedRollout as MessagePack; set when it is finished, until its group has it."""
    grouped_at = models.DateTimeField(null=True)
    """When its group was submitted."""

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(finished_at__isnull=True, record__isnull=True)
                | Q(finished_at__isnull=False, record__isnull=False)
                | Q(grouped_at__isnull=False, record__isnull=True),
                name="agentsession_record_until_its_group_has_it",
            ),
            models.CheckConstraint(
                condition=Q(grouped_at__isnull=True) | Q(finished_at__isnull=False),
                name="agentsession_grouped_after_finished",
            ),
            models.CheckConstraint(condition=Q(group_size__gt=0), name="agentsession_group_size_positive"),
        ]
        indexes = [
            models.Index(fields=["run", "group_key"], name="agentsession_group"),
            models.Index(
                fields=["run", "expires_at"], condition=Q(grouped_at__isnull=True), name="agentsession_under_way"
            ),
        ]

    def __str__(self) -> str:
        return f"session {self.name} of {self.run}"
