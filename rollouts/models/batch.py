"""The groups of one optimizer step."""

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Length, Now
from django.db.models.lookups import Exact

from rollouts.models.group import Rollout, ScoredGroup
from rollouts.models.run import Run
from rollouts.models.stateful import Stateful, known_state, set_exactly_in
from rollouts.states import BatchState


class BatchEncoding(models.TextChoices):
    MSGPACK = "msgpack", "MessagePack of a TrainingBatch"
    ATROPOS = "atropos2", "JSON as the Atropos protocol has it"
    ATROPOS_DOUBLES = "atropos", "the same with longer numbers"
    """Of batches formed by earlier versions: their hash is that of these bytes, so they are encoded as they were."""


class Batch(Stateful):
    """Immutable once formed: the same (run, step) is the same bytes on every fetch, in every epoch."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="batches", db_index=False)
    step = models.PositiveIntegerField()
    state = models.CharField(
        max_length=16,
        choices=[(s.value, s.value) for s in BatchState],
        default=BatchState.FORMED,
    )
    encoding = models.CharField(max_length=8, choices=BatchEncoding.choices, default=BatchEncoding.MSGPACK)
    sha256 = models.CharField(max_length=64)
    """Of the body in its encoding."""
    size_bytes = models.PositiveBigIntegerField()
    token_count = models.PositiveBigIntegerField()
    """Tokens under the loss mask."""
    formed_at = models.DateTimeField(db_default=Now(), editable=False)
    delivered_at = models.DateTimeField(null=True)
    """First delivery."""
    deliveries = models.PositiveIntegerField(default=0)
    trained_at = models.DateTimeField(null=True)
    epoch = models.PositiveIntegerField()
    """Fencing epoch of the trainer it was formed for; a later epoch may train it again after a resume."""
    replay_of = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="replays")
    """The batch, of another run, whose groups it trains on again; null: its groups are new."""

    class Meta:
        ordering = ["-step"]
        verbose_name_plural = "batches"
        constraints = [
            known_state(BatchState, "batch_state_known"),
            models.UniqueConstraint(fields=["run", "step"], name="batch_once_per_step"),
            models.CheckConstraint(
                condition=Q(state=BatchState.TRAINED, trained_at__isnull=False)
                | (~Q(state=BatchState.TRAINED) & Q(trained_at__isnull=True)),
                name="batch_trained_at_exactly_when_trained",
            ),
            set_exactly_in(
                "delivered_at", [BatchState.DELIVERED, BatchState.TRAINED], "batch_delivered_at_once_delivered"
            ),
        ]

    def __str__(self) -> str:
        return f"batch {self.step} of run {self.run_id}"


class BatchItem(models.Model):
    """A group's place in a batch, and the advantages its rollouts were given there. Insert-only."""

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="items", db_index=False)
    group = models.ForeignKey(ScoredGroup, on_delete=models.PROTECT, related_name="batch_items", db_index=False)
    position = models.PositiveIntegerField()
    replay = models.PositiveIntegerField(default=0)
    """0: the one step it was generated for. A person may replay it on record, with the next number."""
    advantages = models.JSONField()
    """One number per rollout, null for failed ones, in rollout order."""

    class Meta:
        ordering = ["batch", "position"]
        constraints = [
            models.UniqueConstraint(fields=["group", "replay"], name="batch_item_group_trains_once"),
            models.UniqueConstraint(fields=["batch", "position"], name="batch_item_position_once"),
        ]

    def __str__(self) -> str:
        return f"group {self.group_id} in {self.batch_id}"


class TokenValues(models.Model):
    """What the optimizer saw of one rollout's tokens in one step, as its trainer said when it acknowledged the step.

    A step that is trained again, after a resume, overwrites its own. Little-endian arrays over all T tokens; 0 where
    the mask reason says that there is nothing, so they are left to Postgres to compress.
    """

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="token_values", db_index=False)
    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="token_values")
    trainer_logprobs = models.BinaryField()
    """f32 [T]."""
    entropies = models.BinaryField()
    """f32 [T]."""
    ratios = models.BinaryField()
    """f32 [T]; as the loss took it, before its bounds."""
    advantages = models.BinaryField()
    """f32 [T]; as the loss took it."""
    mask_reasons = models.BinaryField()
    """u8 [T], of ``trainers.wire.MaskReason``."""
    texts = models.JSONField(null=True)
    """What each token says, if the trainer knows."""

    class Meta:
        ordering = ["batch", "rollout"]
        verbose_name_plural = "token values"
        constraints = [
            models.UniqueConstraint(fields=["batch", "rollout"], name="token_values_once_per_step"),
            models.CheckConstraint(
                condition=Q(Exact(Length("trainer_logprobs"), 4 * Length("mask_reasons")))
                & Q(Exact(Length("entropies"), 4 * Length("mask_reasons")))
                & Q(Exact(Length("ratios"), 4 * Length("mask_reasons")))
                & Q(Exact(Length("advantages"), 4 * Length("mask_reasons"))),
                name="token_values_have_one_length",
            ),
        ]

    def __str__(self) -> str:
        return f"token values of rollout {self.rollout_id} in batch {self.batch_id}"


class Replay(models.Model):
    """A person's order to train a run on stored batches of another: for another objective, or to look again.

    The run takes its batches from here before it forms any of its own; they have the same groups in the same order.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="replays")
    source = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="+")
    first_step = models.PositiveIntegerField()
    last_step = models.PositiveIntegerField()
    """Inclusive."""
    taken = models.PositiveIntegerField(default=0)
    """Batches of it that the run has formed."""
    actor = models.CharField(max_length=150)
    reason = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(condition=Q(first_step__lte=F("last_step")), name="replay_steps_ordered"),
            models.CheckConstraint(
                condition=Q(taken__lte=F("last_step") - F("first_step") + 1), name="replay_takes_its_steps"
            ),
        ]

    def __str__(self) -> str:
        return f"steps {self.first_step} to {self.last_step} of run {self.source_id} into run {self.run_id}"
