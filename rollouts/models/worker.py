"""Workers that are jobs of SLURM, and the pools that keep them. Nothing rests on these rows: they are for people."""

from django.db import models
from django.utils import timezone


class KeptPool(models.Model):
    """A pool of workers as the installation's file has it, as of the last look."""

    name = models.CharField(max_length=32, primary_key=True)
    minimum = models.PositiveIntegerField()
    maximum = models.PositiveIntegerField()
    complaint = models.CharField(max_length=500, blank=True, default="", db_default="")
    """Why it is not kept as it should be; empty: it is."""

    def __str__(self) -> str:
        return self.name


class WorkerJob(models.Model):
    """The job of one worker, of a pool or of none, as of the last look; its row goes with the job."""

    token = models.CharField(max_length=100, primary_key=True)
    """Part of the name by which SLURM knows the job."""
    pool = models.CharField(max_length=32, blank=True, default="", db_default="")
    number = models.CharField(max_length=32)
    state = models.CharField(max_length=32)
    """SLURM's word, in small letters."""
    node = models.CharField(max_length=255, blank=True, default="", db_default="")
    why = models.CharField(max_length=500, blank=True, default="", db_default="")
    """Why it does not play yet, in words."""
    due_at = models.DateTimeField(null=True)
    """When the time of its job is over; None: nobody set an end, or it waits."""
    is_draining = models.BooleanField(default=False, db_default=False)
    """It was told to begin nothing more."""

    class Meta:
        ordering = ["pool", "token"]

    def __str__(self) -> str:
        return f"job {self.number}"

    @property
    def name(self) -> str:
        """What SLURM calls it."""
        return f"rollyard-{self.token}"

    @property
    def left_s(self) -> float | None:
        """Until the time of its job is over; None where no end is set."""
        return None if self.due_at is None else max(0.0, (self.due_at - timezone.now()).total_seconds())
