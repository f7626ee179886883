"""A model under a name: what runs start from, and where it came from."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from rollouts.models.access import Project

MODEL_NAME = r"^[a-z0-9][a-z0-9._-]*$"


class ModelOrigin(models.TextChoices):
    MADE = "made", "Made here with random weights."
    ADDED = "added", "Added by a person."
    TRAINED = "trained", "The result of a run."


class Model(models.Model):
    """A model that runs of a project may start from by its name. Written by ``services.models``.

    The row holds no files: they stay where they are, and are only read. A name means one model for as long as it is
    registered: no result of a run takes it over.
    """

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="models")
    name = models.CharField(max_length=80)
    source = models.CharField(max_length=1000)
    """An absolute directory, or the name of a model on the hub."""
    origin = models.CharField(max_length=8, choices=ModelOrigin.choices)
    run = models.ForeignKey("rollouts.Run", null=True, on_delete=models.PROTECT, related_name="results", editable=False)
    """The run it is the result of."""
    step = models.PositiveIntegerField(null=True)
    """Optimizer steps of that run behind its weights."""
    sha256 = models.CharField(max_length=64, blank=True)
    """Over the files that load (``model_files.hash_files``); empty for a hub model that is not cached."""
    size_bytes = models.PositiveBigIntegerField(default=0)
    architecture = models.CharField(max_length=100, blank=True)
    parameters = models.PositiveBigIntegerField(null=True)
    """None where the files do not say."""
    tokenizer = models.CharField(max_length=100, blank=True)
    """Its class."""
    vocabulary = models.PositiveIntegerField(null=True)
    has_chat_template = models.BooleanField(null=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="model_name_once_per_project"),
            models.UniqueConstraint(fields=["run"], name="model_one_result_per_run"),
            models.CheckConstraint(condition=Q(name__regex=MODEL_NAME), name="model_name_form"),
            models.CheckConstraint(
                condition=Q(origin=ModelOrigin.TRAINED, run__isnull=False, step__isnull=False)
                | Q(origin__in=[ModelOrigin.MADE, ModelOrigin.ADDED], run__isnull=True, step__isnull=True),
                name="model_trained_by_a_run",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_directory(self) -> bool:
        """Whether its files are here; otherwise they are the hub's."""
        return self.source.startswith("/")
