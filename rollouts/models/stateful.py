"""What every row with a state machine shares. Only ``rollouts.services.transitions`` writes these columns."""

from collections.abc import Iterable

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Stateful(models.Model):
    """A row with a state, the reason for it and the moment it was entered (database clock)."""

    state_reason = models.CharField(max_length=500, blank=True, default="")
    state_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        abstract = True


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
