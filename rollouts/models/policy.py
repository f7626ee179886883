"""Weights on disk: policy versions for serving, checkpoints for resuming; and evaluations pinned to a version."""

from django.db import models
from django.db.models import F, Q

from rollouts.models.group import finite
from rollouts.models.run import Run, RunEnvironment
from rollouts.models.stateful import Stateful, known_state, set_exactly_in
from rollouts.states import (
    EVALUATION_TERMINAL,
    CheckpointState,
    EvaluationState,
    PolicyVersionState,
)


class PolicyVersion(Stateful):
    """Weights with ``version`` optimizer steps behind them. Only this row makes the files real."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="policy_versions")
    version = models.PositiveIntegerField()
    state = models.CharField(
        max_length=16,
        choices=[(s.value, s.value) for s in PolicyVersionState],
        default=PolicyVersionState.WRITTEN,
    )
    path = models.CharField(max_length=1000)
    checkpoint = models.ForeignKey(
        "rollouts.Checkpoint", null=True, on_delete=models.PROTECT, related_name="measured_as", editable=False
    )
    """Of an eval run: the checkpoint of another run that its files are made from."""
    manifest_sha256 = models.CharField(max_length=64, blank=True)
    """Empty for version 0 when it is a model that somebody else wrote."""
    size_bytes = models.PositiveBigIntegerField(default=0)
    epoch = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    published_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-version"]
        constraints = [
            known_state(PolicyVersionState, "policy_version_state_known"),
            models.UniqueConstraint(fields=["run", "version"], name="policy_version_once_per_run"),
            models.UniqueConstraint(
                fields=["run"],
                condition=Q(state=PolicyVersionState.LIVE),
                name="policy_version_one_live_per_run",
            ),
            models.CheckConstraint(
                condition=Q(state=PolicyVersionState.LIVE, published_at__isnull=False)
                | Q(state=PolicyVersionState.WRITTEN, published_at__isnull=True)
                | Q(state=PolicyVersionState.SUPERSEDED),
                name="policy_version_live_was_published",
            ),
        ]

    def __str__(self) -> str:
        return f"version {self.version}"


class Checkpoint(Stateful):
    """Files from which training can resume: ``step`` optimizer steps are behind them."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoints")
    step = models.PositiveIntegerField()
    state = models.CharField(
        max_length=16,
        choices=[(s.value, s.value) for s in CheckpointState],
        default=CheckpointState.COMPLETE,
    )
    path = models.CharField(max_length=1000)
    manifest_sha256 = models.CharField(max_length=64)
    size_bytes = models.PositiveBigIntegerField()
    epoch = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-step"]
        constraints = [
            known_state(CheckpointState, "checkpoint_state_known"),
            models.UniqueConstraint(fields=["run", "step"], name="checkpoint_once_per_step"),
        ]

    def __str__(self) -> str:
        return f"checkpoint at step {self.step}"


class Evaluation(Stateful):
    """Held-out problems of one environment, played on one policy version, or on those that came while it was played."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="evaluations")
    environment = models.ForeignKey(RunEnvironment, on_delete=models.CASCADE, related_name="evaluations")
    version = models.PositiveIntegerField()
    """Live when it was opened."""
    min_policy_version = models.PositiveIntegerField(null=True)
    """The oldest version that a reply came from; None before it is closed, and where no reply came."""
    max_policy_version = models.PositiveIntegerField(null=True)
    state = models.CharField(
        max_length=16,
        choices=[(s.value, s.value) for s in EvaluationState],
        default=EvaluationState.PLAYING,
    )
    problems = models.PositiveIntegerField()
    """How many problems to play: indexes 0 to problems - 1 of the split, and no more than it has."""
    cursor = models.PositiveIntegerField(default=0)
    """Next problem to hand out."""
    reward_mean = models.FloatField(null=True)
    figures = models.JSONField(null=True)
    """What it found (`environments.figures`), soon after it is closed; None before, and where nothing was played."""
    created_at = models.DateTimeField(auto_now_add=True)
    deadline_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            known_state(EvaluationState, "evaluation_state_known"),
            set_exactly_in(
                "finished_at",
                EVALUATION_TERMINAL,
                "evaluation_finished_at_in_terminal_states",
            ),
            models.UniqueConstraint(fields=["environment", "version"], name="evaluation_once_per_version"),
            finite("reward_mean", "evaluation_reward_mean_finite"),
            models.CheckConstraint(
                condition=Q(min_policy_version__isnull=True, max_policy_version__isnull=True)
                | Q(min_policy_version__lte=F("max_policy_version")),
                name="evaluation_versions_ordered",
            ),
        ]

    def __str__(self) -> str:
        return f"evaluation of version {self.version}"

    @property
    def measured(self) -> str:
        """Which versions it measured: `25`, or `25 to 27`."""
        first, last = self.min_policy_version, self.max_policy_version
        if first is None or first == last:
            return str(self.version if first is None else first)
        return f"{first} to {last}"
