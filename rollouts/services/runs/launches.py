"""Launch a run from whichever door: find what it starts from, make sure that it loads, store the run.

    model.path = "/models/mine"    directory, by its absolute path
                 "KEY@40"          the checkpoint of step 40 of run KEY: a fork
                 "warm"            a model registered in the project
                 "org/name"        a model of the hub, cached or reachable

What is not found or would not load is refused here, at `model.path`, before anything is stored. The config of the run
holds what was found: the directory or the name on the hub.
"""

import difflib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from django.contrib.auth.models import User
from django.db.models import QuerySet

from rollouts.errors import Invalid, ModelMissing, NotFound
from rollouts.models import Model, Project, Run
from rollouts.selectors import models as model_selectors
from rollouts.services import model_checks, models, trust
from rollouts.services.runs import forks, life, places
from rollouts.storable import check_fits, is_storable
from trainers.config import Resolved
from trainers.origins import Origin, OriginKind
from trainers.run_config.data import is_hub_name
from trainers.storage.model_files import ModelFault

FIELD = "model.path"
MAX_PATH = 1_000
_MESSAGE = "Nothing was launched: the model would not load."


class Start(NamedTuple):
    """What a run starts from."""

    resolved: Resolved
    """With what was found in `model.path`, and where that came from."""
    fork: forks.Fork | None = None
    model: Model | None = None


def launch(
    *,
    project: Project,
    user: User | None,
    resolved: Resolved,
    actor: str,
    forkable: QuerySet[Run],
    fork: forks.Fork | None = None,
) -> Run:
    """Store a run that starts from what its config names; ``forkable`` are the runs whose checkpoints may be taken.

    With a ``fork``, that is what it starts from, whatever the config says. Raises Invalid at `model.path` for what
    would not load, ModelMissing for a name that only a preset can give. Takes a second for a model that is new here.
    """
    if fork:
        trust.check(resolved.config, source=fork.checkpoint.run)
        places.check(resolved.config, project=project, readable=forkable, forks=True)
    start = Start(resolved, fork) if fork else find_start(project, resolved, forkable=forkable)
    return life.create(
        project=project, user=user, resolved=start.resolved, actor=actor, fork=start.fork, model=start.model
    )


def find_start(project: Project, resolved: Resolved, *, forkable: QuerySet[Run]) -> Start:
    """What a run with this config starts from. Nothing is stored. Raises as `launch` does."""
    start = _find_start(project, resolved, forkable)
    trust.check(start.resolved.config, source=start.fork.checkpoint.run if start.fork else None)
    return start


def _find_start(project: Project, resolved: Resolved, forkable: QuerySet[Run]) -> Start:
    named, config = resolved.config.model.path, resolved.config
    check_fits(config)
    if config.kind == "external":
        return Start(resolved)
    if len(named) > MAX_PATH:
        raise _refusal(f"has more than {MAX_PATH} characters")
    if not is_storable(named):
        raise _refusal("holds a NUL or a lone surrogate")
    places.check(config, project=project, readable=forkable)
    if Path(named).is_absolute():
        _check(named, resolved)
        return Start(resolved, model=Model.objects.filter(project=project, source=named).first())
    if named.startswith((".", "~")):
        raise _refusal(f"{named} is relative: write the absolute path of the directory")
    if "@" in named:
        fork = _plan_fork(named, forkable)
        return Start(_with_path(resolved, fork.overrides[FIELD]), fork=fork)
    model = Model.objects.filter(project=project, name=named).first()
    if model is not None:
        _check(model.source, resolved)
        return Start(_with_path(resolved, model.source, named), model=model)
    if named in models.BUILT_IN:
        path = str(models.built_in_directory(named))
        return Start(_with_path(resolved, path, named))
    if model_selectors.preset_that_makes(named):
        trust.check(config)  # else somebody makes the model, and is refused then
        raise ModelMissing(f"There is no model {named} yet.", fields={FIELD: f"there is no model {named} here yet"})
    if not is_hub_name(named):
        raise _refusal(f"{named!r} is no model's name, no absolute directory, no RUN@STEP and no name of the hub")
    if "/" not in named:
        raise _refusal(_unknown(project, named))
    _check(named, resolved)
    return Start(resolved)


def _plan_fork(named: str, forkable: QuerySet[Run]) -> forks.Fork:
    try:
        key, step = forks.parse(named)
        source = forkable.select_related("project").filter(key=key).first()
        if source is None:
            raise NotFound(f"There is no run {key}, or you may not fork it.")
        return forks.plan(source, step=step)
    except (Invalid, NotFound) as error:
        raise _refusal(next(iter(error.fields.values()), error.message)) from None


def _unknown(project: Project, named: str) -> str:
    known = [*Model.objects.filter(project=project).values_list("name", flat=True), *models.BUILT_IN]
    close = difflib.get_close_matches(named, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "register one with `rollyard models add`"
    return f"project {project.slug} has no model {named}: {hint}"


def _check(source: str, resolved: Resolved) -> None:
    try:
        model_checks.check(source, trust_remote_code=resolved.config.model.trust_remote_code)
    except ModelFault as fault:
        raise _refusal(str(fault)) from None


def _with_path(resolved: Resolved, path: str, named: str = "") -> Resolved:
    model = resolved.config.model.model_copy(update={"path": path})
    origins = dict(resolved.origins)
    if named:
        origins[FIELD] = Origin(OriginKind.MODEL, f"{named} ({origins[FIELD]})")
    return replace(resolved, config=resolved.config.model_copy(update={"model": model}), origins=origins)


def _refusal(fault: str) -> Invalid:
    return Invalid(_MESSAGE, fields={FIELD: f"{fault}."})
