"""What people say of groups and do with them: labels, and acts. Insert-only: a word is superseded, not changed."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from rollouts.models.group import Rollout, ScoredGroup, Withholding, finite
from rollouts.models.run import Run, new_key

MAX_TAG = 40
MAX_TAGS = 20
MAX_NOTE = 2_000
MAX_EDITED_BYTES = 256 * 1024
"""Of the messages that somebody puts in a rollout's place, as JSON."""


class LabelVerdict(models.TextChoices):
    """What somebody says of a group or a rollout. By itself it changes nothing else: acts do."""

    ACCEPT = "accept", "Good to learn from."
    REJECT = "reject", "Not to be learned from."
    SKIP = "skip", "Looked at, and left to others."
    WITHDRAWN = "withdrawn", "Taken back: as if it had never been said."


class LabelPreference(models.TextChoices):
    """Which of two rollouts of a group is better."""

    FIRST = "first", "The rollout is better than the other one."
    OTHER = "other", "The other one is better."
    TIE = "tie", "Neither is better."


class Label(models.Model):
    """What one person said of a group, of one rollout of it, or of two beside each other. Written by
    ``services.curation.labels``.

    A person's word on something is the one that no other supersedes.
    """

    key = models.CharField(max_length=16, unique=True, default=new_key, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="labels", db_index=False)
    group = models.ForeignKey(ScoredGroup, on_delete=models.CASCADE, related_name="labels", db_index=False)
    rollout = models.ForeignKey(Rollout, null=True, on_delete=models.CASCADE, related_name="labels", db_index=False)
    """None: the whole group is meant."""
    other = models.ForeignKey(Rollout, null=True, on_delete=models.CASCADE, related_name="+", db_index=False)
    """What `rollout` is compared with."""
    person = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="labels")
    actor = models.CharField(max_length=150)
    """``user:<name>`` or ``api:<token name>``; stays when the account is gone."""
    verdict = models.CharField(max_length=16, choices=LabelVerdict.choices)
    preference = models.CharField(max_length=8, choices=LabelPreference.choices, blank=True)
    tags = ArrayField(models.CharField(max_length=MAX_TAG), default=list, blank=True)
    score = models.FloatField(null=True)
    note = models.TextField(max_length=MAX_NOTE, blank=True)
    edited = models.JSONField(null=True)
    """Messages that the person put in the place of the rollout's; None: nothing. The rollout stays as it is."""
    seconds = models.FloatField(null=True)
    """Spent on it; None: nobody measured."""
    queue = models.ForeignKey(
        "rollouts.LabelQueue", null=True, on_delete=models.PROTECT, related_name="labels", db_index=False
    )
    """In which it was said, apart from what the person says of the same elsewhere; None: outside of any."""
    guideline = models.ForeignKey(
        "rollouts.Guideline", null=True, on_delete=models.PROTECT, related_name="labels", db_index=False
    )
    """By which it was said there."""
    supersedes = models.OneToOneField("self", null=True, on_delete=models.PROTECT, related_name="superseded_by")
    """What the person had said of the same before."""
    at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(verdict__in=LabelVerdict.values), name="label_verdict_known"),
            models.CheckConstraint(
                condition=Q(preference="", other__isnull=True)
                | Q(preference__in=LabelPreference.values, other__isnull=False, rollout__isnull=False)
                | Q(preference="", rollout__isnull=False, verdict__in=[LabelVerdict.SKIP, LabelVerdict.WITHDRAWN]),
                name="label_prefers_one_of_two",
            ),
            models.CheckConstraint(condition=Q(tags__len__lte=MAX_TAGS), name="label_has_few_tags"),
            models.CheckConstraint(
                condition=Q(edited__isnull=True) | Q(rollout__isnull=False, other__isnull=True),
                name="label_edits_one_rollout",
            ),
            models.CheckConstraint(condition=Q(seconds__isnull=True) | Q(seconds__gte=0), name="label_took_time"),
            # Each person begins once to speak of something, and from there on supersedes.
            models.UniqueConstraint(
                fields=["person", "group", "rollout", "other", "queue"],
                condition=Q(supersedes__isnull=True),
                nulls_distinct=False,
                name="label_first_word_once",
            ),
            models.CheckConstraint(
                condition=Q(queue__isnull=True, guideline__isnull=True)
                | Q(queue__isnull=False, guideline__isnull=False),
                name="label_guided_exactly_in_a_queue",
            ),
            finite("score", "label_score_finite"),
        ]
        indexes = [
            models.Index(fields=["queue"], condition=Q(queue__isnull=False), name="label_by_queue"),
            models.Index(fields=["group"], name="label_by_group"),
            models.Index(fields=["run", "-id"], name="label_by_run"),
        ]

    def __str__(self) -> str:
        return f"{self.actor}: {self.verdict}"


class Verb(models.TextChoices):
    """What is done with groups."""

    REJECT = "reject", "Reject from training: what is in no batch yet never enters one, and nothing of it is exported."
    EXCLUDE = "exclude", "Exclude from exports: training goes on with it."
    RESTORE = "restore", "Restore: exported again, and trained if its run still makes batches."
    UNDO = "undo", "Undo an act: each of its groups is again as it was before."


class Act(models.Model):
    """What somebody did with one group or with many, at once. Written by ``services.curation.acts``."""

    key = models.CharField(max_length=16, unique=True, default=new_key, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="acts", db_index=False)
    verb = models.CharField(max_length=16, choices=Verb.choices)
    person = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    actor = models.CharField(max_length=150)
    note = models.TextField(max_length=MAX_NOTE, blank=True)
    undoes = models.OneToOneField("self", null=True, on_delete=models.PROTECT, related_name="undone_by")
    at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(verb__in=Verb.values), name="act_verb_known"),
            models.CheckConstraint(
                condition=Q(verb=Verb.UNDO, undoes__isnull=False) | (~Q(verb=Verb.UNDO) & Q(undoes__isnull=True)),
                name="act_undoes_exactly_by_undo",
            ),
        ]
        indexes = [models.Index(fields=["run", "-id"], name="act_by_run")]

    def __str__(self) -> str:
        return f"{self.actor}: {self.verb}"


class ActItem(models.Model):
    """One group of an act, and how it was before."""

    act = models.ForeignKey(Act, on_delete=models.CASCADE, related_name="items", db_index=False)
    group = models.ForeignKey(ScoredGroup, on_delete=models.CASCADE, related_name="act_items")
    withheld_before = models.CharField(max_length=8, choices=Withholding.choices, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["act", "group"], name="act_item_once_per_group")]

    def __str__(self) -> str:
        return f"group {self.group_id} of act {self.act_id}"
