"""Queues of groups or rollouts that people look at: what they hold, who has which item now, and by which guideline."""

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from rollouts.models.access import Project
from rollouts.models.group import Rollout, ScoredGroup
from rollouts.models.run import new_key

MAX_GUIDELINE = 20_000
MOST_QUEUE_TAGS = 9
"""A key of the keyboard each."""


class QueueUnit(models.TextChoices):
    """What an item is."""

    GROUP = "group", "A group, with all of its rollouts"
    ROLLOUT = "rollout", "One rollout"
    PAIR = "pair", "Two rollouts of a group, side by side"


class RejectEffect(models.TextChoices):
    """What else a word *reject* does in a queue."""

    REJECT = "reject", "Rejects the group from training"
    EXCLUDE = "exclude", "Excludes the group from exports"


class LabelQueue(models.Model):
    """A saved filter whose groups people look at, one after the other. Written by ``services.curation.queues``."""

    key = models.CharField(max_length=16, unique=True, default=new_key, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="label_queues")
    name = models.CharField(max_length=100)
    unit = models.CharField(max_length=8, choices=QueueUnit.choices, default=QueueUnit.GROUP)
    filter = models.JSONField(default=dict)
    """As ``services.curation.filters.QueueFilter``."""
    source = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="adjudicated_in")
    """Whose disagreements it holds, in place of what a filter lets in: a word that is said here decides."""
    people = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="+", blank=True)
    """Who alone is given items; nobody: every curator of the project is."""
    tags = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    """Offered for the keys 1 to 9."""
    words_per_item = models.PositiveSmallIntegerField(default=1)
    """So many people say a word on each item."""
    is_blind = models.BooleanField(default=False)
    """Whether nobody sees the words of others before saying an own."""
    on_reject = models.CharField(max_length=8, choices=RejectEffect.choices, blank=True)
    """Empty: a word is a word."""
    lease_s = models.PositiveIntegerField(default=600)
    """So long an item is one person's alone."""
    filled_until = models.DateTimeField(null=True)
    """Groups that came into their state before were looked at; None: nobody asked for an item yet."""
    filled_group = models.BigIntegerField(default=0)
    """Of those that did at that moment, the last that was looked at."""
    actor = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    closed_at = models.DateTimeField(null=True)
    """From then on it gives nothing out."""

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="label_queue_name_once_per_project"),
            models.CheckConstraint(condition=Q(unit__in=QueueUnit.values), name="label_queue_unit_known"),
            models.CheckConstraint(
                condition=Q(on_reject__in=["", *RejectEffect.values]), name="label_queue_effect_known"
            ),
            models.CheckConstraint(
                condition=Q(words_per_item__gte=1, words_per_item__lte=20), name="label_queue_words_per_item"
            ),
            models.CheckConstraint(condition=Q(lease_s__gte=5, lease_s__lte=86_400), name="label_queue_lease"),
            models.CheckConstraint(condition=Q(tags__len__lte=MOST_QUEUE_TAGS), name="label_queue_has_few_tags"),
            models.CheckConstraint(
                condition=Q(source__isnull=True) | Q(is_blind=False, words_per_item=1),
                name="label_queue_adjudicates_by_one_word",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Guideline(models.Model):
    """What people are asked to look for, as it was from one moment on. Insert-only: the newest version holds."""

    queue = models.ForeignKey(LabelQueue, on_delete=models.CASCADE, related_name="guidelines", db_index=False)
    version = models.PositiveIntegerField()
    text = models.TextField(max_length=MAX_GUIDELINE, blank=True)
    actor = models.CharField(max_length=150)
    at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ["queue", "-version"]
        constraints = [models.UniqueConstraint(fields=["queue", "version"], name="guideline_version_once_per_queue")]

    def __str__(self) -> str:
        return f"version {self.version}"


class QueueItem(models.Model):
    """Something to look at."""

    queue = models.ForeignKey(LabelQueue, on_delete=models.CASCADE, related_name="items", db_index=False)
    group = models.ForeignKey(ScoredGroup, on_delete=models.CASCADE, related_name="+", db_index=False)
    rollout = models.ForeignKey(Rollout, null=True, on_delete=models.CASCADE, related_name="+", db_index=False)
    """None: the whole group."""
    other = models.ForeignKey(Rollout, null=True, on_delete=models.CASCADE, related_name="+", db_index=False)
    """What `rollout` is compared with; it comes later in the group. None: it is no pair."""
    words = models.PositiveSmallIntegerField(default=0, db_default=0)
    """Of how many people it has."""
    is_open = models.BooleanField(default=True, db_default=True)
    """Whether it wants more."""

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["queue", "group", "rollout", "other"], nulls_distinct=False, name="queue_item_once_per_queue"
            ),
            models.CheckConstraint(
                condition=Q(other__isnull=True) | Q(rollout__isnull=False) & ~Q(rollout=F("other")),
                name="queue_item_pairs_two",
            ),
        ]
        indexes = [models.Index(fields=["queue", "id"], condition=Q(is_open=True), name="queue_item_open")]

    def __str__(self) -> str:
        return f"item {self.pk}"


class QueueTurn(models.Model):
    """One person at one item: taken for a while, and then said a word on."""

    key = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    item = models.ForeignKey(QueueItem, on_delete=models.CASCADE, related_name="turns", db_index=False)
    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    taken_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    """By the database clock: from then on somebody else may have the item."""
    label = models.OneToOneField("rollouts.Label", null=True, on_delete=models.PROTECT, related_name="turn")
    """What the person said; None: nothing yet."""
    act = models.OneToOneField("rollouts.Act", null=True, on_delete=models.PROTECT, related_name="turn")
    """What the word did besides (`LabelQueue.on_reject`)."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["item", "person"], name="turn_once_per_item_and_person"),
            models.CheckConstraint(condition=Q(expires_at__gt=F("taken_at")), name="turn_expires_after_it_is_taken"),
        ]
        indexes = [models.Index(fields=["person", "-taken_at"], name="turn_by_person")]

    def __str__(self) -> str:
        return f"{self.person} at {self.item}"
