"""Scored groups, their rollouts and token arrays, and the lease on a group that is being played."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Length
from django.db.models.lookups import Exact

from environments.types import ErrorKind, StopReason
from rollouts.models.ordered import OrderedJSONField
from rollouts.models.run import Run, RunEnvironment
from rollouts.models.stateful import Stateful, known_state, set_exactly_in
from rollouts.states import GroupState
from rollouts.storable import FINITE, MAX_SEAT


def finite(column: str, name: str) -> models.CheckConstraint:
    return models.CheckConstraint(
        condition=Q(**{f"{column}__isnull": True}) | Q(**{f"{column}__gte": -FINITE, f"{column}__lte": FINITE}),
        name=name,
    )


class Purpose(models.TextChoices):
    TRAIN = "train", "Training"
    EVAL = "eval", "Evaluation"


class Withholding(models.TextChoices):
    """From what people hold a group back. Empty: from nothing."""

    REJECTED = "rejected", "From batches that are still to be formed, and from exports."
    EXCLUDED = "excluded", "From exports."


ROUNDING = 1e-9
"""Rewards whose standard deviation is less are equal: of equal ones it is often not quite 0."""
SETTLED = sorted(set(GroupState.values) - {GroupState.PLAYING})


class ScoredGroup(Stateful):
    """The rollouts of one problem: the unit that is stored, leased, batched, trained or dropped. Never deleted."""

    # Most rows of the store are written here and below, each into every index. Of foreign keys that begin no index of
    # their own below, nothing is ever asked: runs and environments are not deleted.
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="groups", db_index=False)
    environment = models.ForeignKey(RunEnvironment, on_delete=models.PROTECT, related_name="groups", db_index=False)
    environment_version = models.CharField(max_length=100, blank=True, default="", db_default="")
    """Of the code that gave the problem and scored it; empty: whoever submitted it did not say."""
    key = models.CharField(max_length=64, default=uuid.uuid4)
    """Public name; external submitters choose it, so that a retry is stored once."""
    purpose = models.CharField(max_length=8, choices=Purpose.choices, default=Purpose.TRAIN)
    evaluation = models.ForeignKey(
        "rollouts.Evaluation",
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="groups",
        db_index=False,
    )
    problem_index = models.PositiveBigIntegerField(null=True)
    """Position in the environment's problem sequence; None for submitted groups."""
    problem_key = models.CharField(max_length=200, blank=True)

    state = models.CharField(max_length=16, choices=[(s.value, s.value) for s in GroupState])
    lease_count = models.PositiveSmallIntegerField(default=1)
    """How many leases were taken on it."""
    created_at = models.DateTimeField(auto_now_add=True)

    settled_at = models.DateTimeField(null=True)
    rollout_count = models.PositiveIntegerField(default=0)
    token_count = models.PositiveBigIntegerField(default=0)
    reward_mean = models.FloatField(null=True)
    reward_std = models.FloatField(null=True)
    scored_count = models.PositiveIntegerField(null=True)
    """Rollouts that have a reward; None: stored before they were counted."""
    solved_count = models.PositiveIntegerField(null=True)
    """Those of them whose reward says that they solved the problem (`environments[].solved_at`)."""
    min_policy_version = models.PositiveIntegerField(null=True)
    max_policy_version = models.PositiveIntegerField(null=True)
    withheld = models.CharField(max_length=8, choices=Withholding.choices, blank=True, default="", db_default="")
    """Written by ``services.curation.acts``."""
    review_until = models.DateTimeField(null=True)
    """Until then people may look at it first (`environments[].review`); None: they did, or it waits for nobody."""
    given_rewards = ArrayField(models.FloatField(null=True), null=True)
    """In rollout order what counts in place of the environment's rewards, which the rollouts keep, because people gave
    some of them; None: nobody did. Written by ``services.curation.reviews``."""

    class Meta:
        ordering = ["-id"]
        constraints = [
            known_state(GroupState, "group_state_known"),
            models.CheckConstraint(condition=Q(withheld__in=["", *Withholding.values]), name="group_withheld_known"),
            models.CheckConstraint(
                condition=~Q(state=GroupState.REJECTED) | Q(withheld=Withholding.REJECTED),
                name="group_rejected_is_withheld",
            ),
            set_exactly_in("settled_at", SETTLED, "group_settled_at_after_playing"),
            models.UniqueConstraint(fields=["run", "key"], name="group_key_once_per_run"),
            models.CheckConstraint(
                condition=Q(purpose=Purpose.EVAL, evaluation__isnull=False, problem_index__isnull=False)
                | Q(purpose=Purpose.TRAIN, evaluation__isnull=True),
                name="group_evaluation_exactly_for_eval",
            ),
            models.UniqueConstraint(
                fields=["evaluation", "problem_index"],
                condition=Q(evaluation__isnull=False),
                name="group_problem_once_per_evaluation",
            ),
            models.CheckConstraint(
                condition=~Q(state=GroupState.EVALUATED) | Q(purpose=Purpose.EVAL),
                name="group_evaluated_is_eval",
            ),
            models.CheckConstraint(
                condition=~Q(state=GroupState.HELD) | Q(review_until__isnull=False), name="group_held_until_a_moment"
            ),
            models.CheckConstraint(
                condition=~Q(state__in=[GroupState.HELD, GroupState.READY, GroupState.BATCHED, GroupState.TRAINED])
                | Q(
                    purpose=Purpose.TRAIN,
                    min_policy_version__isnull=False,
                    rollout_count__gt=0,
                ),
                name="group_trainable_is_complete",
            ),
            models.CheckConstraint(
                condition=Q(min_policy_version__isnull=True) | Q(min_policy_version__lte=F("max_policy_version")),
                name="group_versions_ordered",
            ),
            models.CheckConstraint(
                condition=Q(solved_count__lte=F("scored_count"), scored_count__lte=F("rollout_count")),
                name="group_solves_at_most_what_it_scored",
            ),
            finite("reward_mean", "group_reward_mean_finite"),
        ]
        indexes = [
            # Batch formation skips from one (environment, size) to the next and reads the oldest few of each.
            models.Index(
                fields=["run", "environment", "rollout_count", "id"],
                condition=Q(state=GroupState.READY),
                name="group_ready",
            ),
            # For stale groups. The run comes second, so that the planner never takes this one for the queue of a run.
            models.Index(
                fields=["min_policy_version", "run"],
                condition=Q(state=GroupState.READY),
                name="group_ready_by_version",
            ),
            models.Index(
                fields=["run", "id"],
                condition=Q(state=GroupState.PLAYING),
                name="group_playing",
            ),
            models.Index(fields=["run", "review_until"], condition=Q(state=GroupState.HELD), name="group_held"),
            models.Index(fields=["run", "state", "reason_code"], name="group_ledger"),
            models.Index(
                fields=["run", "-settled_at"],
                condition=Q(settled_at__isnull=False),
                name="group_recent",
            ),
            # For queues, which look at what changed since.
            models.Index(
                fields=["run", "state_at"],
                condition=Q(settled_at__isnull=False),
                name="group_changed",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.environment_id}/{self.problem_key or self.problem_index}"


class Lease(models.Model):
    """Exclusive, expiring claim on a playing group. Tiny and hot, so it is apart from the group.

    Written only by ``services.groups.leases``; deleted when the group is settled.
    """

    group = models.OneToOneField(ScoredGroup, primary_key=True, on_delete=models.CASCADE, related_name="lease")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="leases")
    holder = models.CharField(max_length=100)
    token = models.UUIDField(unique=True, default=uuid.uuid4)
    """New per claim: a holder that lost its lease cannot settle, whatever its clock says."""
    claimed_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    """By the database clock. Not indexed, so that renewals stay heap-only updates."""
    policy_version = models.PositiveIntegerField(null=True)
    """Live when it was claimed: nothing that is played under the lease is older. None: nobody noted it then."""

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(expires_at__gt=F("claimed_at")),
                name="lease_expires_after_claim",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.holder} until {self.expires_at:%H:%M:%S}"


class Rollout(models.Model):
    """The record one episode left. Insert-only."""

    group = models.ForeignKey(ScoredGroup, on_delete=models.CASCADE, related_name="rollouts", db_index=False)
    index = models.PositiveSmallIntegerField()
    """Among all rollouts of the group, whatever their seats."""
    seat = models.CharField(max_length=MAX_SEAT, blank=True, default="", db_default="")
    """Who it played in a match; empty: the environment has one player. The k-th rollout of each seat are match k."""
    reward = models.FloatField(null=True)
    """None exactly when the episode failed."""
    metrics = models.JSONField(default=dict)
    messages = models.JSONField(default=list)
    tools = OrderedJSONField(null=True)
    """What the policy was told it may call, as it was told; None: nothing."""
    earlier_branches = models.JSONField(null=True)
    """Messages of each branch but the last, whose are `messages`; None: there is one branch, or nobody kept them."""
    stop_reason = models.CharField(max_length=8, choices=[(s.value, s.value) for s in StopReason])
    error_kind = models.CharField(max_length=16, blank=True, choices=[(k.value, k.value) for k in ErrorKind])
    error = models.JSONField(null=True)
    token_count = models.PositiveIntegerField()
    trained_token_count = models.PositiveIntegerField()
    """Tokens under the loss mask."""
    dispatch_policy_version = models.PositiveIntegerField(null=True)
    first_policy_version = models.PositiveIntegerField(null=True)
    last_policy_version = models.PositiveIntegerField(null=True)
    replica = models.CharField(max_length=100, blank=True)
    worker = models.CharField(max_length=100, blank=True)
    generation_s = models.FloatField(default=0.0)
    spans = models.JSONField(null=True)
    """Where the episode's time went: `[kind, began_s, seconds]` each; null where nobody measured it."""

    class Meta:
        ordering = ["group", "index"]
        constraints = [
            models.UniqueConstraint(fields=["group", "index"], name="rollout_index_once_per_group"),
            models.CheckConstraint(
                condition=Q(stop_reason__in=list(StopReason)),
                name="rollout_stop_reason_known",
            ),
            models.CheckConstraint(
                condition=Q(reward__isnull=True, stop_reason=StopReason.ERROR)
                | (Q(reward__isnull=False) & ~Q(stop_reason=StopReason.ERROR)),
                name="rollout_reward_exactly_unless_error",
            ),
            finite("reward", "rollout_reward_finite"),
            models.CheckConstraint(
                condition=Q(trained_token_count__lte=F("token_count")), name="rollout_trains_at_most_its_tokens"
            ),
        ]

    def __str__(self) -> str:
        return f"rollout {self.index} of group {self.group_id}"

    @property
    def counting_reward(self) -> float | None:
        """What people gave in place of its reward, if they did; else that."""
        given = self.group.given_rewards
        return self.reward if given is None else given[self.index]


COUNTING_REWARD = Coalesce(
    models.Func(
        F("group__given_rewards"),
        F("index"),
        template="(%(expressions)s + 1]",  # (given)[index + 1]
        arg_joiner=")[",
        output_field=models.FloatField(),
    ),
    "reward",
)
"""`Rollout.counting_reward`, for queries of rollouts."""


class GroupTokens(models.Model):
    """The token arrays of a group's rollouts, end to end, apart from what lists show. Insert-only.

    Little-endian, out of line and uncompressed: ids and logprobs hardly compress and reading them back is the data
    path. Layout and slicing: ``rollouts.formats.arrays``.
    """

    group = models.OneToOneField(ScoredGroup, primary_key=True, on_delete=models.CASCADE, related_name="tokens")
    lengths = models.BinaryField()
    """u32 [G]: tokens of each rollout, in rollout order."""
    token_ids = models.BinaryField()
    """u32 [N], N the sum of the lengths."""
    loss_mask = models.BinaryField()
    """u8 [N]."""
    inference_logprobs = models.BinaryField()
    """f32 [N]."""
    ref_logprobs = models.BinaryField(null=True)
    """f32 [N], of a reference or teacher policy."""
    advantages = models.BinaryField(null=True)
    """f32 [N], per token, from the environment."""
    branch_lengths = models.BinaryField(null=True)
    """u32: tokens of each branch of all rollouts, in order; null: each rollout is one branch."""
    extras = models.BinaryField(null=True)
    """What else an external environment sent, as its API encodes it."""

    class Meta:
        verbose_name_plural = "group tokens"
        constraints = [
            # Postgres knows the length of a stored value without reading it. A null is no fault: null columns pass.
            models.CheckConstraint(
                condition=Q(Exact(Length("token_ids"), 4 * Length("loss_mask")))
                & Q(Exact(Length("inference_logprobs"), 4 * Length("loss_mask")))
                & (Q(ref_logprobs__isnull=True) | Q(Exact(Length("ref_logprobs"), 4 * Length("loss_mask"))))
                & (Q(advantages__isnull=True) | Q(Exact(Length("advantages"), 4 * Length("loss_mask")))),
                name="tokens_have_one_length",
            ),
        ]

    def __str__(self) -> str:
        return f"tokens of group {self.group_id}"
