"""Exports: files that one version of a dataset is written to; and which runs learned from which version."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from environments.types import Split
from rollouts.models.dataset import DatasetForm, DatasetVersion
from rollouts.models.run import Run, new_key
from rollouts.models.stateful import Stateful, known_state, set_exactly_in
from rollouts.states import EXPORT_TERMINAL, ExportState


class ExportForm(models.TextChoices):
    """What one row is to a trainer."""

    SFT = "sft", "A prompt and what the policy said behind it"
    KTO = "kto", "The same, and whether it is wanted"
    DPO = "dpo", "A prompt, and a better and a worse answer"

    @property
    def needs(self) -> DatasetForm:
        """The versions that can be written so."""
        return DatasetForm.PAIRS if self == ExportForm.DPO else DatasetForm.EXAMPLES


class FileFormat(models.TextChoices):
    """What the files are."""

    JSONL = "jsonl", "A JSON object per line"
    PARQUET = "parquet", "A table"


class Export(Stateful):
    """A version of a dataset as files. Written by ``services.datasets.exports``; the same version is the same bytes."""

    key = models.CharField(max_length=16, unique=True, default=new_key, editable=False)
    version = models.ForeignKey(DatasetVersion, on_delete=models.PROTECT, related_name="exports")
    form = models.CharField(max_length=8, choices=ExportForm.choices)
    file_format = models.CharField(max_length=8, choices=FileFormat.choices, default=FileFormat.JSONL)
    state = models.CharField(
        max_length=16, choices=[(s.value, s.value) for s in ExportState], default=ExportState.QUEUED
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    actor = models.CharField(max_length=150)
    epoch = models.PositiveIntegerField(default=0)
    """Raised by every worker that takes it: what an earlier one writes is refused."""
    expires_at = models.DateTimeField(null=True)
    """When another worker may take it from the one that writes it, by the database clock."""
    members_done = models.PositiveBigIntegerField(default=0)
    """Examples of the version that are in the files."""
    row_count = models.PositiveBigIntegerField(default=0)
    """Rows in the files: a rollout with branches is several, one that fits no row is none."""
    size_bytes = models.PositiveBigIntegerField(default=0)
    manifest = models.JSONField(null=True)
    """What the files are and what they are made from, each with its SHA-256."""
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            known_state(ExportState, "export_state_known"),
            models.CheckConstraint(condition=Q(form__in=ExportForm.values), name="export_form_known"),
            models.CheckConstraint(condition=Q(file_format__in=FileFormat.values), name="export_format_known"),
            set_exactly_in("finished_at", EXPORT_TERMINAL | {ExportState.DONE}, "export_finished_at_when_over"),
            set_exactly_in("expires_at", {ExportState.WRITING}, "export_expires_while_it_is_written"),
            models.CheckConstraint(
                condition=~Q(state=ExportState.DONE) | Q(manifest__isnull=False), name="export_done_has_a_manifest"
            ),
        ]
        indexes = [
            models.Index(
                fields=["id"], condition=Q(state__in=[ExportState.QUEUED, ExportState.WRITING]), name="export_open"
            )
        ]

    def __str__(self) -> str:
        return f"export {self.key}"

    @property
    def is_open(self) -> bool:
        """Whether something is still to come of it."""
        return self.state in {ExportState.QUEUED, ExportState.WRITING}

    @property
    def share_done(self) -> float:
        """0 to 1."""
        return self.members_done / self.version.member_count if self.version.member_count else 1.0


class RunDataset(models.Model):
    """What a supervised run learns from, if that is a version of a dataset. Written once, at its launch; but for the
    hash."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="datasets", db_index=False)
    version = models.ForeignKey(DatasetVersion, on_delete=models.PROTECT, related_name="learners")
    split = models.CharField(max_length=8, choices=[(each.value, each.value) for each in Split], default=Split.TRAIN)
    """`eval`: it is measured on this one."""
    sha256 = models.CharField(max_length=64, blank=True)
    """Of the file that its trainer reads; empty: not written yet."""
    row_count = models.PositiveBigIntegerField(null=True)

    class Meta:
        ordering = ["run", "-split"]
        constraints = [models.UniqueConstraint(fields=["run", "split"], name="run_dataset_once_per_split")]

    def __str__(self) -> str:
        return f"run {self.run_id} on {self.version}"
