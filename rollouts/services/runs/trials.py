"""Trials: one episode of any environment, played by the live policy of a run or by an endpoint, to be looked at.

    begin, begin_alone ─► waiting ─► a driver of the run: claim ─► tell, turn by turn ─► finish
                                     deadline, or the run ended: failed

An endpoint needs no run that is there already: it is tried in one of its own, which evaluates nothing.

Every write of a driver names its holder and finds the trial playing: one that comes late changes nothing.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import QuerySet, Value
from django.db.models.functions import Now

from environments.types import JsonObject, Split
from rollouts import bell
from rollouts.errors import Conflict, Invalid, StateConflict
from rollouts.models import Project, Run, Trial
from rollouts.reasons import Reason, ReasonCode
from rollouts.selectors import trials
from rollouts.services import endpoints, trust
from rollouts.services.runs import launches, life, places
from rollouts.services.transitions import DB_NOW, record_creation, transition
from rollouts.states import RUN_ACTIVE, TRIAL_TERMINAL, TrialState
from rollouts.storable import MAX_INT, check_fits, displayable_values
from trainers.config import ConfigError, Resolved, resolve
from trainers.origins import Origin, OriginKind
from trainers.run_config import SamplingConfig

DEADLINE_S = 300.0
"""From the moment that somebody asks for it."""
MOST_TURNS = 1_000
ALONE = SamplingConfig(max_tokens=1024, max_turns=16)
"""Of an endpoint without a run that says otherwise."""
_MESSAGE = "Nothing is tried."


class TrialRequest:
    """What is to be tried, checked as a launch would be."""

    def __init__(
        self,
        project: Project,
        sampling: SamplingConfig,
        *,
        name: str,
        args: Mapping[str, Any],
        python: str = "",
        split: Split = Split.TRAIN,
        problem_index: int = 0,
        temperature: float | None = None,
        max_turns: int | None = None,
        endpoint: str = "",
    ) -> None:
        """`project`, `sampling`: of the run. None: as that says.

        Raises Invalid, with what is wrong at `problem_index`, `temperature`, `max_turns` or `endpoint`.
        """
        self.split = split
        self.problem_index = problem_index
        self.temperature = sampling.temperature if temperature is None else temperature
        self.max_tokens = sampling.max_tokens
        self.max_turns = sampling.max_turns if max_turns is None else max_turns
        self.name = name
        self.endpoint = endpoint
        self.environment = {"name": name, "args": dict(args), "python": python}
        fields = {}
        if not 0 <= problem_index <= MAX_INT:
            fields["problem_index"] = f"must be 0 to {MAX_INT}"
        if not 0 <= self.temperature <= 10:
            fields["temperature"] = "must be 0 (greedy) to 10"
        if not 1 <= self.max_turns <= MOST_TURNS:
            fields["max_turns"] = f"must be 1 to {MOST_TURNS}"
        if endpoint and not endpoints.usable(project).filter(name=endpoint).exists():
            fields["endpoint"] = endpoints.fault(project, endpoint)
        if fields:
            raise Invalid(_MESSAGE, fields=fields)


def begin(run: Run, asked: TrialRequest, *, user: User, readable: QuerySet[Run], actor: str) -> Trial:
    """Ask the drivers of a run for an episode. The caller has made sure that the user may operate the run.

    ``readable``: the runs whose files the user may use. Raises Invalid for what no run could play or the user may not
    name, Untrusted, StateConflict where no replica of the run answers, Conflict for a second trial of the same person.
    """
    config = _resolved(_episode(run, asked)).config
    check_fits(config)
    trust.check(config, source=run.forked_from.run if run.forked_from else None)
    places.check(config, project=run.project, readable=readable, forks=True)
    if not trials.answering(Run.objects.filter(pk=run.pk)).exists():
        raise StateConflict(f"Run {run} has no policy live now. Choose a run whose inference servers are ready.")
    with _one_at_a_time():
        return _store(run, asked, user, actor)


def begin_alone(project: Project, asked: TrialRequest, *, user: User, readable: QuerySet[Run], actor: str) -> Trial:
    """Ask an endpoint for an episode, in a run that is there for nothing else and ends with it.

    The caller has made sure that the user may launch in the project. Raises as `begin` does.
    """
    values = {
        "kind": "eval",
        "name": re.sub("[^a-z0-9]+", "-", f"try-{asked.name}".lower())[:64],
        "max_steps": 1,
        "model": {"endpoint": asked.endpoint},
        "inference": {"replicas": 0},
        "environments": [asked.environment],
        "sampling": {"max_tokens": asked.max_tokens, "max_turns": asked.max_turns},
        "evaluation": {"problems": 0},
    }
    start = launches.find_start(project, _resolved(values), forkable=readable)
    with _one_at_a_time(), transaction.atomic():
        run = life.create(project=project, user=user, resolved=start.resolved, actor=actor)
        return _store(run, asked, user, actor)


def sampling_of(run: Run, name: str, args: Mapping[str, Any]) -> SamplingConfig:
    """How a run samples an environment, of several by that name the one with these arguments; else as it does all."""
    config = run.parsed
    refs = sorted((ref for ref in config.environments if ref.name == name), key=lambda ref: ref.args != args)
    return refs[0].sampling(config.sampling) if refs else config.sampling


def _episode(run: Run, asked: TrialRequest) -> dict[str, Any]:
    """The config of a run that does nothing but play this: an episode fills no batch, compares and measures nothing."""
    return {
        "kind": "eval",
        "max_steps": 1,
        "model": {**run.config["model"], "lora": {}},
        "policies": run.config.get("policies", []),
        "inference": {"replicas": 0 if run.parsed.model.endpoint else 1},
        "environments": [asked.environment],
        "evaluation": {"problems": 0},
    }


def _resolved(values: dict[str, Any]) -> Resolved:
    """The config of a run that plays what is asked for. Raises Invalid with what is wrong with its environment."""
    try:
        return resolve(inline=values, inline_from=Origin(OriginKind.FORM))
    except ConfigError as error:
        own = {problem.path: problem.message for problem in error.problems if problem.path.startswith("environments.")}
        raise Invalid(_MESSAGE, fields=own or {"name": str(error)}) from None


def _store(run: Run, asked: TrialRequest, user: User, actor: str) -> Trial:
    with transaction.atomic():
        trial = Trial.objects.create(
            run=run,
            created_by=user,
            environment=asked.environment,
            endpoint=asked.endpoint,
            name=asked.name,
            split=asked.split,
            problem_index=asked.problem_index,
            temperature=asked.temperature,
            max_tokens=asked.max_tokens,
            max_turns=asked.max_turns,
            deadline_at=Now() + Value(timedelta(seconds=DEADLINE_S)),
        )
        record_creation([trial], run_id=run.pk, state=TrialState.WAITING, actor=actor)
    trial.refresh_from_db()
    return trial


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Tell a person whose other trial is still open."""
    try:
        yield
    except IntegrityError:
        raise Conflict("Another trial of yours is still being played. Wait until it is over.") from None


def claim(run: Run, *, holder: str, limit: int) -> list[Trial]:
    """Take up to ``limit`` waiting trials of a run to play, oldest first."""
    waiting = Trial.objects.filter(run=run, state=TrialState.WAITING, deadline_at__gt=Now()).order_by("id")
    ids = list(waiting.values_list("pk", flat=True)[:limit])
    moved = transition(Trial, ids, to=TrialState.PLAYING, actor=f"driver:{holder}", holder=holder) if ids else []
    return list(Trial.objects.filter(pk__in=moved).order_by("id"))


def tell(trial: Trial, record: JsonObject) -> bool:
    """Overwrite what there is of an episode that goes on; False: it is no longer ours to play."""
    mine = Trial.objects.filter(pk=trial.pk, state=TrialState.PLAYING, holder=trial.holder)
    is_ours = mine.update(record=displayable_values(record)) > 0
    bell.ring_after_commit(trial.run_id)
    return is_ours


def finish(trial: Trial, record: JsonObject) -> None:
    """The episode is over, well or not: the record says which."""
    with transaction.atomic():
        if tell(trial, record):
            actor = f"driver:{trial.holder}"
            transition(Trial, [trial.pk], to=TrialState.FINISHED, actor=actor, finished_at=DB_NOW)


def drop(trial: Trial) -> None:
    """Its driver ends and cannot go on with it."""
    reason = Reason(ReasonCode.TRIAL_DROPPED)
    actor = f"driver:{trial.holder}"
    transition(Trial, [trial.pk], to=TrialState.FAILED, actor=actor, reason=reason, finished_at=DB_NOW)


def fail_overdue() -> list[int]:
    """Fail trials whose time is up or whose run is over; return their ids. One query where there is none."""
    open_trials = Trial.objects.exclude(state__in=TRIAL_TERMINAL)
    late = list(open_trials.filter(deadline_at__lte=Now()).values_list("pk", flat=True))
    orphaned = open_trials.exclude(run__state__in=RUN_ACTIVE).values_list("pk", "run__state")
    failed = []
    if late:
        reason = Reason(ReasonCode.TRIAL_LATE, seconds=DEADLINE_S)
        failed += transition(Trial, late, to=TrialState.FAILED, actor="reconciler", reason=reason, finished_at=DB_NOW)
    for pk, state in orphaned:
        reason = Reason(ReasonCode.RUN_ENDED, state=state)
        failed += transition(Trial, [pk], to=TrialState.FAILED, actor="reconciler", reason=reason, finished_at=DB_NOW)
    return failed
