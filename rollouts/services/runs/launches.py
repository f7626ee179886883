"""Launch a run from whichever door: find what it starts from, make sure that it loads, store the run.

    model.path = "/models/mine"    directory, by its absolute path
                 "KEY@40"          the checkpoint of step 40 of run KEY: a fork
                 "warm"            a model registered in the project
                 "KEY@20,40"       several checkpoints, or all of them (KEY:*): only an eval run measures a series
                 "org/name"        a model of the hub, cached or reachable

What is not found or would not load is refused here, at `model.path`, before anything is stored. The config of the run
holds what was found: the directory or the name on the hub. So are the models of `[[policies]]`, none of which is a
checkpoint; `start` stays `start`.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from django.contrib.auth.models import User
from django.db.models import QuerySet

from rollouts.errors import Invalid, ModelMissing, NotFound
from rollouts.models import Model, Project, Run
from rollouts.selectors import models as model_selectors
from rollouts.services import endpoints, model_checks, models, trust
from rollouts.services.datasets import learning
from rollouts.services.runs import forks, life, places
from rollouts.storable import check_fits, is_storable
from trainers.config import Resolved
from trainers.origins import Origin, OriginKind
from trainers.run_config import RunConfig
from trainers.run_config.data import is_hub_name
from trainers.storage.model_files import ModelFault

FIELD = "model.path"
MAX_PATH = 1_000
_SERIES = r"(\w+)(?:@|:)([0-9]+(?:,[0-9]+)*|\*)"
_MESSAGE = "Nothing was launched: the model would not load."


class Start(NamedTuple):
    """What a run starts from."""

    resolved: Resolved
    """With what was found in `model.path`, and where that came from."""
    fork: forks.Fork | None = None
    model: Model | None = None
    learned: Sequence[learning.Learned] = ()
    """Versions of datasets."""


def launch(
    *,
    project: Project,
    user: User | None,
    resolved: Resolved,
    actor: str,
    forkable: QuerySet[Run],
    fork: forks.Fork | None = None,
    fork_optimizer: bool = False,
) -> Run:
    """Store a run that starts from what its config names; ``forkable`` are the runs whose checkpoints may be taken.

    With a ``fork``, that is what it starts from, whatever the config says; else ``fork_optimizer`` says whether the
    checkpoint that the config names gives its optimizer state too. Raises Invalid at `model.path` for what would not
    load, ModelMissing for a name that only a preset can give. Takes a second for a model that is new here.
    """
    if fork:
        _check_spelling(resolved.config)
        places.check(resolved.config, project=project, readable=forkable, forks=True)
        start = _with_steps(_with_datasets(project, Start(_with_frozen(project, resolved), fork)))
        _check_start(project, start)
    else:
        start = find_start(project, resolved, forkable=forkable, fork_optimizer=fork_optimizer)
    return life.create(
        project=project,
        user=user,
        resolved=start.resolved,
        actor=actor,
        fork=start.fork,
        model=start.model,
        learned=start.learned,
    )


def find_start(project: Project, resolved: Resolved, *, forkable: QuerySet[Run], fork_optimizer: bool = False) -> Start:
    """What a run with this config starts from. Nothing is stored. Raises as `launch` does."""
    start = _with_steps(_find_start(project, resolved, forkable))
    if fork_optimizer:
        start = _with_optimizer(start)
    start = _with_datasets(project, start._replace(resolved=_with_frozen(project, start.resolved)))
    _check_start(project, start)
    return start


def _check_start(project: Project, start: Start) -> None:
    """Raise Invalid at what does not go with the checkpoint, and at what administrators have to allow, and none did."""
    if start.fork:
        forks.check(start.fork, start.resolved.config)
    trust.check(start.resolved.config, source=start.fork.checkpoint.run if start.fork else None)
    endpoints.check(start.resolved.config, project)


def _find_start(project: Project, resolved: Resolved, forkable: QuerySet[Run]) -> Start:
    named, config = resolved.config.model.path, resolved.config
    check_fits(config)
    if config.kind == "external":
        return Start(resolved)
    _check_spelling(config)
    places.check(config, project=project, readable=forkable)
    if config.model.endpoint:
        return Start(resolved)
    if config.kind == "eval" and (series := re.fullmatch(_SERIES, named)):
        fork = _plan(series[1], forkable, lambda source: forks.plan_series(source, series[2]))
        return Start(_with_path(resolved, fork.overrides[FIELD]), fork=fork)
    if "@" in named and not Path(named).is_absolute() and not _is_relative(named):
        fork = _plan_fork(named, forkable)
        return Start(_with_path(resolved, fork.overrides[FIELD]), fork=fork)
    found = _find_model(project, named, config, FIELD)
    if found is None:
        trust.check(config)  # else somebody makes the model, and is refused then
        raise ModelMissing(f"There is no model {named} yet.", fields={FIELD: f"there is no model {named} here yet"})
    return Start(_with_path(resolved, found.path, named if found.path != named else ""), model=found.model)


def _with_optimizer(start: Start) -> Start:
    """With the optimizer state of the checkpoint. Raises Invalid where there is none to take."""
    if start.fork is None or start.resolved.config.kind == "eval":
        fault = "is about a checkpoint to train from: name one as `model.path`, RUN@STEP, or leave it out"
        raise Invalid("Nothing was launched: the run cannot be forked so.", fields={"fork_optimizer": fault})
    return start._replace(fork=start.fork._replace(with_optimizer=True))


def _with_steps(start: Start) -> Start:
    """With as many steps as an eval run measures versions, for the last of them ends it."""
    config = start.resolved.config
    if config.kind != "eval":
        return start
    steps = len(start.fork.series) if start.fork else 0
    config = config.model_copy(update={"max_steps": steps or 1})
    return start._replace(resolved=replace(start.resolved, config=config))


def _with_datasets(project: Project, start: Start) -> Start:
    """With the versions of datasets that `data` names."""
    config = start.resolved.config
    learned = learning.find(project, config)
    resolved = replace(start.resolved, config=learning.with_versions(config, learned))
    return start._replace(resolved=resolved, learned=learned)


def _with_frozen(project: Project, resolved: Resolved) -> Resolved:
    """With what was found in `policies`."""
    config, origins = resolved.config, dict(resolved.origins)
    policies = list(config.policies)
    if config.kind == "external":
        return resolved
    for index, policy in enumerate(policies):
        if policy.is_start or not policy.model:
            continue
        named, field = policy.model, f"policies.{index}.model"
        if "@" in named and not Path(named).is_absolute():
            add = f"rollyard models add{project.command_option}"
            fix = f"`rollyard checkpoints export` makes it a model, `{add}` gives that a name"
            raise _refusal(f"{named} is a checkpoint, and here a model is named: {fix}", field)
        found = _find_model(project, named, config, field)
        if found is None:
            command = f"rollyard launch {model_selectors.preset_that_makes(named)}{project.command_option}"
            raise _refusal(f"there is no model {named} here yet: `{command}` makes it", field)
        policies[index] = policy.model_copy(update={"model": found.path})
        if found.path != named:
            origins[field] = Origin(OriginKind.MODEL, f"{named} ({origins[field]})")
    return replace(resolved, config=config.model_copy(update={"policies": policies}), origins=origins)


class _Found(NamedTuple):
    """A model that a config names."""

    path: str
    """A directory, or a name of the hub."""
    model: Model | None = None


def _find_model(project: Project, named: str, config: RunConfig, field: str) -> _Found | None:
    """What a name stands for that is no checkpoint's; it loads. None: a preset makes it. Raises Invalid at `field`."""
    if Path(named).is_absolute():
        _check(named, config, field)
        return _Found(named, Model.objects.filter(project=project, source=named).first())
    if _is_relative(named):
        raise _refusal(f"{named} is relative: write the absolute path of the directory", field)
    model = Model.objects.filter(project=project, name=named).first()
    if model is not None:
        _check(model.source, config, field)
        return _Found(model.source, model)
    if named in models.BUILT_IN:
        return _Found(str(models.built_in_directory(named)))
    if model_selectors.preset_that_makes(named):
        return None
    if not is_hub_name(named):
        forms = "no model's name, no absolute directory, no RUN@STEP and no name of the hub"
        raise _refusal(f"{named!r} is {forms}", field)
    if "/" not in named:
        raise _refusal(_unknown(project, named), field)
    _check(named, config, field)
    return _Found(named)


def _is_relative(named: str) -> bool:
    return named.startswith((".", "~"))


def _check_spelling(config: RunConfig) -> None:
    """Raise Invalid at what no model is called, before anything is looked up by it."""
    named = {FIELD: config.model.path} | {f"{key}.model": policy.model for key, policy in config.frozen.items()}
    for field, name in named.items():
        if len(name) > MAX_PATH:
            raise _refusal(f"has more than {MAX_PATH} characters", field)
        if not is_storable(name):
            raise _refusal("holds a NUL or a lone surrogate", field)


def _plan_fork(named: str, forkable: QuerySet[Run]) -> forks.Fork:
    try:
        key, step = forks.parse(named)
    except Invalid as error:
        raise _refusal(next(iter(error.fields.values()), error.message)) from None
    return _plan(key, forkable, lambda source: forks.plan(source, step=step))


def _plan(key: str, forkable: QuerySet[Run], plan: Callable[[Run], forks.Fork]) -> forks.Fork:
    try:
        source = forkable.select_related("project").filter(key=key).first()
        if source is None:
            raise NotFound(f"There is no run {key}, or you may not fork it.")
        return plan(source)
    except (Invalid, NotFound) as error:
        raise _refusal(next(iter(error.fields.values()), error.message)) from None


def _unknown(project: Project, named: str) -> str:
    known = [*Model.objects.filter(project=project).values_list("name", flat=True), *models.BUILT_IN]
    close = difflib.get_close_matches(named, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"register one with `rollyard models add{project.command_option}`"
    return f"project {project.slug} has no model {named}: {hint}"


def _check(source: str, config: RunConfig, field: str) -> None:
    is_trained = config.is_trained and field == FIELD
    try:
        model_checks.check(source, trust_remote_code=config.model.trust_remote_code, is_trained=is_trained)
    except ModelFault as fault:
        raise _refusal(str(fault), field) from None


def _with_path(resolved: Resolved, path: str, named: str = "") -> Resolved:
    model = resolved.config.model.model_copy(update={"path": path})
    origins = dict(resolved.origins)
    if named:
        origins[FIELD] = Origin(OriginKind.MODEL, f"{named} ({origins[FIELD]})")
    return replace(resolved, config=resolved.config.model_copy(update={"model": model}), origins=origins)


def _refusal(fault: str, field: str = FIELD) -> Invalid:
    return Invalid(_MESSAGE, fields={field: fault if fault.endswith("?") else f"{fault}."})
