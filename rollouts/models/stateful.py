"""What every row with a state machine shares. Only ``rollouts.services.transitions`` writes these columns."""

from collections.abc import Iterable

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from rollouts.reasons import Reason


class Reasoned(models.Model):
    """A row that says why, as a code with parameters (``rollouts.reasons``)."""

    reason_code = models.CharField(max_length=32, blank=True, default="")
    """Empty: there is nothing to say."""
    reason_params = models.JSONField(blank=True, default=dict)

    class Meta:
        abstract = True

    @property
    def reason(self) -> Reason | None:
        """Whose ``str`` is the sentence for people."""
        return Reason.read(self.reason_code, self.reason_params) if self.reason_code else None


class Stateful(Reasoned):
    """A row with a state, the reason for it and the moment it was entered (database clock)."""

    state_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        abstract = True

    @property
    def state_reason(self) -> str:
        """The sentence of the reason; empty when there is none."""
        return str(self.reason or "")


def known_state(states: type[models.TextChoices], name: str) -> models.CheckConstraint:
    """A constraint that keeps unknown states out, also from raw SQL."""
    return models.CheckConstraint(condition=Q(state__in=states.values), name=name)


def set_exactly_in(column: str, states: Iterable[str], name: str) -> models.CheckConstraint:
    """A constraint that ties a nullable column to states: set in these, null in all others."""
    members = sorted(str(state) for state in states)
    return models.CheckConstraint(
        condition=Q(state__in=members, **{f"{column}__isnull": False})
        | (~Q(state__in=members) & Q(**{f"{column}__isnull": True})),
        name=name,
    )
