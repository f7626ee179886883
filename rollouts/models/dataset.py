"""Datasets: named, immutable versions of what is learned from, each example of which says where it is from."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from environments.types import Split
from rollouts.models.access import Project
from rollouts.models.group import Rollout, ScoredGroup
from rollouts.models.ordered import OrderedJSONField
from rollouts.models.run import new_key
from rollouts.storable import MAX_KEY

MAX_NOTES = 20_000
MAX_LICENCE = 200


class DatasetForm(models.TextChoices):
    """What one example is."""

    EXAMPLES = "examples", "A rollout, wanted or not: for supervised training, and for KTO"
    PAIRS = "pairs", "Two rollouts of a group, the first of which is better: for DPO"


class Dataset(models.Model):
    """What its versions are called. Written by ``services.datasets``."""

    key = models.CharField(max_length=16, unique=True, default=new_key, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=MAX_KEY)
    notes = models.TextField(max_length=MAX_NOTES, blank=True)
    licence = models.CharField(max_length=MAX_LICENCE, blank=True)
    """Of what is in it; empty: nobody said."""
    actor = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="dataset_name_once_per_project")]

    def __str__(self) -> str:
        return self.name


class DatasetVersion(models.Model):
    """Which examples a dataset has, as of one moment. It and its members are made in one transaction and never change;
    but for `statistics`, which are counted afterwards."""

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="versions", db_index=False)
    version = models.PositiveIntegerField()
    form = models.CharField(max_length=8, choices=DatasetForm.choices)
    recipe = models.JSONField(default=dict)
    """What its members were chosen by."""
    parent = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="children", db_index=False)
    """The version that it was made from; None: from rollouts, queues or a file."""
    member_count = models.PositiveBigIntegerField()
    digest = models.CharField(max_length=64)
    """SHA-256 of its members in their order: equal digests, equal versions."""
    statistics = models.JSONField(null=True)
    """None: not counted yet."""
    note = models.TextField(max_length=MAX_NOTES, blank=True)
    actor = models.CharField(max_length=150)
    at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["dataset", "-version"]
        constraints = [
            models.UniqueConstraint(fields=["dataset", "version"], name="dataset_version_once"),
            models.CheckConstraint(condition=Q(form__in=DatasetForm.values), name="dataset_form_known"),
            models.CheckConstraint(condition=Q(version__gte=1), name="dataset_versions_begin_at_one"),
        ]

    def __str__(self) -> str:
        return f"{self.dataset}@{self.version}"


class DatasetMember(models.Model):
    """One example of a version: a reference to a rollout, or a row of a file. Insert-only.

    Labels and corrections are insert-only as well, so what a member refers to stays what it was.
    """

    version = models.ForeignKey(DatasetVersion, on_delete=models.CASCADE, related_name="members", db_index=False)
    position = models.PositiveBigIntegerField()
    """From 0, without gaps."""
    split = models.CharField(max_length=8, choices=[(each.value, each.value) for each in Split], default=Split.TRAIN)
    """Of one problem all examples are in the same; `eval` is the validation split."""
    group = models.ForeignKey(ScoredGroup, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    rollout = models.ForeignKey(Rollout, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    other = models.ForeignKey(Rollout, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    """Of a pair the worse one: of a correction also what it corrects."""
    is_wanted = models.BooleanField(default=True)
    """Whether it is to be imitated; False: to be avoided, as KTO has it."""
    correction = models.ForeignKey(
        "rollouts.Label", null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    """Whose `edited` is learned in place of the rollout's messages; the rollout stays beside it."""
    labels = ArrayField(models.BigIntegerField(), null=True)
    """Ids of the labels that counted when the version was made; None: nobody had said a word."""
    step = models.PositiveIntegerField(null=True)
    """Of the batch that had trained its group when the version was made; None: none had, and what comes later does not
    count."""
    row = OrderedJSONField(null=True)
    """Of a file: the line as it was."""

    class Meta:
        ordering = ["version", "position"]
        constraints = [
            models.UniqueConstraint(fields=["version", "position"], name="dataset_member_position_once"),
            models.CheckConstraint(
                condition=Q(row__isnull=False, group__isnull=True, rollout__isnull=True)
                | Q(row__isnull=True, group__isnull=False, rollout__isnull=False),
                name="dataset_member_of_a_rollout_or_a_file",
            ),
            models.CheckConstraint(
                condition=Q(other__isnull=True)
                | Q(rollout__isnull=False) & (~Q(other=F("rollout")) | Q(correction__isnull=False)),
                name="dataset_member_pairs_two",
            ),
            models.CheckConstraint(
                condition=Q(correction__isnull=True) | Q(rollout__isnull=False),
                name="dataset_member_corrects_a_rollout",
            ),
        ]
        indexes = [models.Index(fields=["group"], condition=Q(group__isnull=False), name="dataset_member_by_group")]

    def __str__(self) -> str:
        return f"example {self.position} of version {self.version_id}"
