"""Machine credentials: shown once, stored hashed, scoped and expiring."""

from collections.abc import Iterable
from datetime import timedelta

from django.contrib.auth.models import User

from rollouts.errors import Invalid
from rollouts.models import ApiToken, Project, Replica, Run, Scope
from rollouts.storable import UNNAMABLE, is_name

TRAINER_TTL = timedelta(days=30)


def create(
    *,
    user: User,
    project: Project,
    name: str,
    scopes: Iterable[Scope],
    ttl: timedelta,
    run: Run | None = None,
) -> str:
    """Make a token and return it in clear; it cannot be read again. With ``run`` it opens only that run.

    Raises Invalid for a name that hides something.
    """
    if not is_name(name):
        raise Invalid("No token was made.", fields={"name": UNNAMABLE})
    _, token = ApiToken.objects.create(
        user=user,
        project=project,
        name=name[:100],
        scopes=[str(scope) for scope in scopes],
        run=run,
        expiry=ttl,
    )
    return str(token)


def name_of(replica: Replica) -> str:
    """What the token of a trainer is called."""
    return f"{replica.name} of {replica.run.key}"


def revoke(replica: Replica) -> None:
    """Delete the token of a trainer that was not started, if it has one."""
    ApiToken.objects.filter(run=replica.run_id, name=name_of(replica)).delete()


def revoke_run_tokens(run: Run) -> int:
    """Delete every token bound to a run; return how many."""
    deleted, _ = ApiToken.objects.filter(run=run).delete()
    return deleted
