"""Reads of trials, and of the runs whose policy could play one."""

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import F, Q, QuerySet

from rollouts.errors import NotFound
from rollouts.models import Replica, ReplicaKind, Run, Trial
from rollouts.selectors import runs
from rollouts.states import RUN_GENERATING, ReplicaState, TrialState


def answering(found: QuerySet[Run]) -> QuerySet[Run]:
    """Of these runs those that something answers for now, a replica or an endpoint; newest first."""
    serving = Replica.objects.filter(kind=ReplicaKind.INFERENCE, policy="", state=ReplicaState.READY)
    live = found.filter(state__in=RUN_GENERATING, live_version__gte=0)
    return live.filter(Q(replicas__in=serving) | Q(config__model__endpoint__gt="")).distinct().order_by("-id")


def get(run: Run, key: str) -> Trial:
    """The trial of a run with this key. Raises NotFound."""
    found = run.trials.select_related("run", "created_by").filter(key=key).first()
    if found is None:
        raise NotFound(f"Run {run.key} has no trial {key}.")
    return found


def newest(user: User | AnonymousUser, environment: str, limit: int = 10) -> list[Trial]:
    """What was tried of an environment with runs that the user may see, newest first, with its `reward`. One query."""
    found = Trial.objects.filter(name=environment, run__in=runs.for_user(user)).select_related("run", "created_by")
    payload = ("record", "run__config", "run__config_origins")
    return list(found.defer(*payload).annotate(reward=F("record__reward")).order_by("-id")[:limit])


def are_open(run: Run) -> bool:
    """Whether somebody waits for an episode of this run's policy."""
    return Trial.objects.filter(run=run, state__in=(TrialState.WAITING, TrialState.PLAYING)).exists()
