"""What drivers and replicas are busy with: a row each, which is overwritten every few seconds."""

from django.db import models

from rollouts.models.replica import Replica
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

    is_draining = models.BooleanField(default=False, db_default=False)
    """It claims nothing more, and ends when what it plays is settled."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "holder"], name="driver_load_once_per_holder")]

    def __str__(self) -> str:
        return f"{self.holder}: {self.sessions} sessions"


class ReplicaLoad(models.Model):
    """What the reconciler saw of one replica, and what an inference server said of itself. Nothing rests on it: it is
    for people, but for `idle_s`, which goes into what the run cost.

    Written by ``services.runs.replica_loads``; kept when the replica has ended.
    """

    replica = models.OneToOneField(Replica, primary_key=True, on_delete=models.CASCADE, related_name="load")
    heartbeat_at = models.DateTimeField(null=True)
    """Of its shepherd, as of the last look. All moments here are by the database clock."""
    reported_at = models.DateTimeField(null=True)
    """When the server was last asked what it is busy with; None: it has not answered that yet. So with the others."""
    running = models.PositiveIntegerField(default=0, db_default=0)
    """Requests."""
    waiting = models.PositiveIntegerField(default=0, db_default=0)
    """Requests that have no room yet."""
    cache_share = models.FloatField(default=0.0, db_default=0.0)
    """Of its KV cache, in use."""
    tokens = models.PositiveBigIntegerField(default=0, db_default=0)
    """Generated since it began, probes included."""
    tokens_per_s = models.FloatField(null=True)
    """Between the last two reports."""
    idle_since = models.DateTimeField(null=True)
    """Since when nobody but a probe has asked it for anything; None: it is at work."""
    idle_s = models.FloatField(default=0.0, db_default=0.0)
    """For how long that was so, all in all."""

    def __str__(self) -> str:
        return f"load of replica {self.replica_id}"
