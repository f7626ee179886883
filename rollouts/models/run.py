"""A run and the environments it draws problems from."""

import secrets
from functools import cached_property
from pathlib import Path

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from rollouts.models.access import Project
from rollouts.models.stateful import Stateful, known_state, set_exactly_in
from rollouts.states import RUN_TERMINAL, RunState
from trainers.config import RunConfig
from trainers.origins import Origin, read_origins
from trainers.run_config import EnvironmentRef

KEY_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
"""No letters or digits that people confuse when they read a key aloud."""


def new_key() -> str:
    """A random public key of 10 characters (about 49 bits): unguessable enough for URLs, short enough to type."""
    return "".join(secrets.choice(KEY_ALPHABET) for _ in range(10))


def new_atropos_key() -> str:
    """A random URL-safe key of 192 bits: whoever knows it may feed the run and train it, so it is a credential."""
    return secrets.token_urlsafe(24)


class RunKind(models.TextChoices):
    RL = "rl", "Reinforcement learning"
    SFT = "sft", "Supervised fine-tuning"
    EXTERNAL = "external", "External trainer"
    EVAL = "eval", "Evaluation"


class Run(Stateful):
    """One job with a frozen config. Written by ``services.runs.life``; never deleted by the system."""

    key = models.CharField(max_length=16, unique=True, default=new_key, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="runs")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    kind = models.CharField(max_length=8, choices=RunKind.choices)
    name = models.CharField(max_length=64, blank=True)

    config = models.JSONField()
    """The resolved RunConfig; never changes."""
    config_origins = models.JSONField(default=dict)
    """Dotted key -> where its value came from, as ``trainers.origins`` stores it."""
    max_steps = models.PositiveIntegerField()

    forked_from = models.ForeignKey(
        "rollouts.Checkpoint", null=True, on_delete=models.PROTECT, related_name="forks", editable=False
    )
    """The checkpoint of another run whose weights are version 0 of this one. It is not deleted while it is named."""
    fork_optimizer = models.BooleanField(default=False, editable=False)
    """Whether training starts with that checkpoint's optimizer state too."""
    model = models.ForeignKey(
        "rollouts.Model", null=True, on_delete=models.SET_NULL, related_name="runs", editable=False
    )
    """The registered model that it starts from. Its directory, and not its name, is in the config."""

    state = models.CharField(
        max_length=16,
        choices=[(s.value, s.value) for s in RunState],
        default=RunState.PENDING,
    )
    epoch = models.PositiveIntegerField(default=0)
    """Fencing epoch: raised by every trainer registration; writes of an older one are refused."""
    next_step = models.PositiveIntegerField(default=0)
    """Number of acknowledged steps."""
    live_version = models.IntegerField(default=-1)
    """Newest policy version that the inference replicas serve; -1 before the first."""
    mixture_clock = models.FloatField(default=0.0)
    """Virtual time of the mixture: see ``rollouts.formation``."""
    trainer_restarts = models.PositiveIntegerField(default=0)
    """Trainers that died without a step of progress; a step of progress resets it."""

    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    trainer_finished_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            known_state(RunState, "run_state_known"),
            set_exactly_in("finished_at", RUN_TERMINAL, "run_finished_at_in_terminal_states"),
            models.CheckConstraint(condition=Q(kind__in=RunKind.values), name="run_kind_known"),
            models.CheckConstraint(condition=Q(next_step__lte=F("max_steps")), name="run_steps_within_plan"),
            models.CheckConstraint(condition=Q(live_version__gte=-1), name="run_live_version_from_none"),
        ]
        indexes = [
            models.Index(
                fields=["id"],
                condition=~Q(state__in=sorted(RUN_TERMINAL)),
                name="run_active",
            ),
            models.Index(fields=["project", "-id"], name="run_by_project"),
        ]

    def __str__(self) -> str:
        return self.name or self.key

    @cached_property
    def parsed(self) -> RunConfig:
        """The config as the typed tree that the trainer parses too."""
        return RunConfig.stored(self.config)

    @property
    def origins(self) -> dict[str, Origin]:
        """Dotted key -> where its value came from."""
        return read_origins(self.config_origins)

    @property
    def player(self) -> str:
        """What plays its first version, as an evaluation's target names it."""
        if endpoint := self.parsed.model.endpoint:
            return f"endpoint:{endpoint}"
        if self.forked_from:
            return f"{self.forked_from.run.key}@{self.forked_from.step}"
        return self.model.name if self.model else self.parsed.model.path

    @property
    def environment_names(self) -> frozenset[str]:
        """Environments of the config. Submitted groups may name others, of which no problem can be handed out."""
        return frozenset(ref.run_name for ref in self.parsed.environments)

    def environment_ref(self, name: str) -> EnvironmentRef:
        """What the config says of an environment by its name in the run. Raises StopIteration for one of others."""
        return next(ref for ref in self.parsed.environments if ref.run_name == name)

    @property
    def directory(self) -> Path:
        """Where its weights, checkpoints and replicas' files live."""
        return Path(settings.ROLLYARD_RUNS_DIR) / self.key

    @property
    def datasets_directory(self) -> Path:
        """Where versions of datasets are written for its trainer, a directory each."""
        return self.directory / "datasets"

    @property
    def is_over(self) -> bool:
        return self.state in RUN_TERMINAL


class RunEnvironment(models.Model):
    """One environment in a run's mixture. Its row is locked to hand out problems in order."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="environments")
    name = models.CharField(max_length=100)
    args = models.JSONField(default=dict)
    weight = models.FloatField(default=1.0)
    """What holds now. With a schedule it is set when a batch is formed, for the one after it."""
    cursor = models.PositiveBigIntegerField(default=0)
    """Training problems handed out so far. Without pools the index of the next; drivers wrap it by their count."""
    problems = models.PositiveBigIntegerField(null=True)
    """How many different ones are trained on; None: nobody asked, so drivers wrap."""
    unseen = models.PositiveBigIntegerField(default=0)
    """With pools: the index of the first problem that was never handed out."""
    passed = models.PositiveBigIntegerField(default=0)
    """Turns that it let others have, because the groups it had were all that a driver would play of it."""
    turn_time = models.FloatField(default=0.0)
    """Virtual time of its turns, had or passed, each as long as its group's rollouts / weight: see
    ``services.batches.mixture``."""
    problem_count = models.PositiveBigIntegerField(null=True)
    """Problems of the split that evaluations play; None: nobody asked, or it did not say in time and no
    driver has counted yet."""
    virtual_time = models.FloatField(default=0.0)
    """Rollouts batched so far over weight: see ``rollouts.formation``."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "name"], name="environment_once_per_run"),
            models.CheckConstraint(
                condition=Q(weight__gt=0) & Q(weight__lt=1e9),
                name="environment_weight_positive",
            ),
        ]

    def __str__(self) -> str:
        return self.name
