"""A process that a launcher started for a run: an inference server or a trainer."""

import uuid

from django.db import models
from django.db.models import Q

from rollouts.models.run import Run
from rollouts.models.stateful import Stateful, known_state, set_exactly_in
from rollouts.states import REPLICA_TERMINAL, ReplicaState


class ReplicaKind(models.TextChoices):
    INFERENCE = "inference", "Inference server"
    TRAINER = "trainer", "Trainer"


class Replica(Stateful):
    """One process. A restart is a new row: a replica's story has one beginning and one end."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="replicas")
    kind = models.CharField(max_length=16, choices=ReplicaKind.choices)
    policy = models.CharField(max_length=64, blank=True, default="")
    """Inference only: which of the run's `[[policies]]` it serves, as that model is. Empty: the policy of the run."""
    slot = models.PositiveSmallIntegerField(default=0)
    """Which of the run's wanted replicas of this kind and policy it is; one alive per slot."""
    state = models.CharField(
        max_length=16,
        choices=[(s.value, s.value) for s in ReplicaState],
        default=ReplicaState.STARTING,
    )
    token = models.UUIDField(unique=True, default=uuid.uuid4)
    """In the environment of every process it starts, so that leftovers are found whatever became of their parents."""
    launcher = models.CharField(max_length=16, default="local")
    gpus = models.PositiveSmallIntegerField(null=True)
    """Which it computes on, on all of its nodes; None: started before anybody noted it. So with `cores`."""
    cores = models.PositiveSmallIntegerField(null=True)
    """Of its job; on this machine, which it shares, those that its threads are for."""
    job_number = models.CharField(max_length=32, blank=True, default="", db_default="")
    """Of its job, as SLURM counts, which uses numbers again after a reset; empty until it was seen in the queue."""
    host = models.CharField(max_length=255, blank=True, default="", db_default="")
    """Where it runs, the first of its nodes; empty until that is known."""
    directory = models.CharField(max_length=1000, blank=True)
    """Its log, heartbeat and exit file."""
    base_url = models.CharField(max_length=200, blank=True)
    """Inference only, e.g. http://127.0.0.1:8001."""
    loaded_version = models.IntegerField(null=True)
    """The version of the run's own policy that a server of it reported to serve."""
    probe_failures = models.PositiveSmallIntegerField(default=0)
    answered_at = models.DateTimeField(null=True)
    """Last answer to a real generation, or last call of a trainer."""
    exit_code = models.IntegerField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    begun_at = models.DateTimeField(null=True)
    """Since when its process runs: a job may wait for its node for days."""
    due_at = models.DateTimeField(null=True)
    """When the time of its job is over; None: nobody set an end, or it waits."""
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            known_state(ReplicaState, "replica_state_known"),
            set_exactly_in("ended_at", REPLICA_TERMINAL, "replica_ended_at_in_terminal_states"),
            models.UniqueConstraint(
                fields=["run", "kind", "policy", "slot"],
                condition=~Q(state__in=sorted(REPLICA_TERMINAL)),
                name="replica_one_alive_per_slot",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.kind, self.policy, str(self.slot), str(self.pk))))

    @property
    def job_name(self) -> str:
        """What SLURM calls its job; empty where it is none."""
        return f"rollyard-{self.token}" if self.launcher == "slurm" else ""

    @property
    def log(self) -> str:
        """The file that it writes to."""
        return f"{self.directory}/log.txt" if self.directory else ""
