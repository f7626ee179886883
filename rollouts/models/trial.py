"""One episode that somebody tries an environment with, against the live policy of a run. Nothing is trained on it."""

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from rollouts.models.run import Run, new_key
from rollouts.models.stateful import Stateful, known_state, set_exactly_in
from rollouts.states import TRIAL_TERMINAL, TrialState


class Trial(Stateful):
    """Written by ``services.runs.trials``. Its record grows by every turn, and is complete in its last state."""

    key = models.CharField(max_length=16, unique=True, default=new_key, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="trials", db_index=False)
    """Whose drivers play it, and whose policy unless an endpoint does."""
    endpoint = models.CharField(max_length=64, blank=True)
    """Who plays in place of the policy; empty: nobody does."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    environment = models.JSONField()
    """Its section of a run config: name, args, python."""
    name = models.CharField(max_length=200)
    """Of the environment."""
    split = models.CharField(max_length=8)
    problem_index = models.PositiveBigIntegerField()
    temperature = models.FloatField()
    max_tokens = models.PositiveIntegerField()
    max_turns = models.PositiveIntegerField()
    state = models.CharField(
        max_length=16, choices=[(s.value, s.value) for s in TrialState], default=TrialState.WAITING
    )
    holder = models.CharField(max_length=100, blank=True)
    """The driver that plays it."""
    record = models.JSONField(default=dict, encoder=DjangoJSONEncoder)
    """What there is of the episode, as ``environments.types.PlayedRollout``, without its tokens."""
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    deadline_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            known_state(TrialState, "trial_state_known"),
            set_exactly_in("finished_at", TRIAL_TERMINAL, "trial_finished_at_in_terminal_states"),
            # An episode costs its run's policy: a person has one at a time.
            models.UniqueConstraint(
                fields=["created_by"],
                condition=~Q(state__in=sorted(TRIAL_TERMINAL)),
                name="trial_one_at_a_time",
            ),
        ]
        indexes = [
            models.Index(fields=["run"], condition=~Q(state__in=sorted(TRIAL_TERMINAL)), name="trial_open"),
            models.Index(fields=["name", "-id"], name="trial_by_environment"),
        ]

    def __str__(self) -> str:
        return f"trial {self.key}"

    @property
    def is_over(self) -> bool:
        return self.state in TRIAL_TERMINAL
