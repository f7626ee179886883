"""Which files a launched run may be given: none of the installation's own, none of a run that its launcher may not see.

What a config names is shown to the run's sandbox, so naming it is reading it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.db.models import QuerySet

from environments import registry
from environments.disk import detour
from environments.reserved import reserved
from rollouts.errors import Invalid
from rollouts.models import Model, Project, Run
from rollouts.services import model_checks
from trainers.run_config import RunConfig
from trainers.run_config.data import dataset_name, is_hub_name

MODEL_KEY, _LORA_KEY = "model.path", "model.lora.path"
_OPEN = ("demo", "models")
"""What of the home holds nothing but models."""


def check(config: RunConfig, *, project: Project, readable: QuerySet[Run], forks: bool = False) -> None:
    """Raise Invalid at every key that names a place no run of this launcher may read.

    ``readable``: the runs whose files the launcher may use. What is registered in ``project`` may be read as well. With
    ``forks``, `model.path` is what the fork made of it. Names of models are looked up by whoever asked for this.
    """
    named = list(_named(config, forks=forks))
    faults = {key: fault for key, path in named if path and (fault := _fault(key, path, readable))}
    if faults:
        registered = Model.objects.filter(project=project, source__in=[path for _, path in named])
        known = set(registered.values_list("source", flat=True))
        faults = {key: fault for key, fault in faults.items() if dict(named)[key] not in known}
    for key, path in named:
        if key in faults or not Path(path).is_absolute():
            continue
        # Of models whoever loads them says more.
        if not (_is_of_model(key) or key == _LORA_KEY or os.path.lexists(path)):
            faults[key] = f"there is no {path} on this machine: put the data there, or name it as the hub does."
        elif fault := model_checks.closed_to_runs(Path(path)):
            faults[key] = f"{fault}."
    if faults:
        raise Invalid("Nothing was launched: the run cannot read that.", fields=faults)


def _named(config: RunConfig, *, forks: bool) -> Iterator[tuple[str, str]]:
    if not forks:
        yield MODEL_KEY, config.model.path
    yield _LORA_KEY, config.model.lora.path
    for key, policy in config.frozen.items():
        yield f"{key}.model", policy.model
    if config.data is not None:
        yield "data.path", config.data.path
        if config.data.validation is not None:
            yield "data.validation.path", config.data.validation.path
    for index, environment in enumerate(config.environments):
        yield f"environments.{index}.args.data", registry.data_of(environment.name, environment.args)


def _is_of_model(key: str) -> bool:
    """Whether it may name a model otherwise than by a path."""
    return key == MODEL_KEY or key.startswith("policies.")


def _fault(key: str, named: str, readable: QuerySet[Run]) -> str:
    path = Path(named)
    if dataset_name(named) is not None:
        return ""  # it is looked up in the run's project
    if not path.is_absolute():
        return "" if _is_of_model(key) or is_hub_name(named) else f"{named[:100]} is relative: write the absolute path"
    try:
        place = path.resolve()
        detour_of_it = detour(path, [settings.HOME.path, Path(settings.ROLLYARD_RUNS_DIR)])
    except (OSError, ValueError) as error:
        return f"{named[:100]} is no path here: {getattr(error, 'strerror', None) or error}."
    home, runs = settings.HOME.path.resolve(), Path(settings.ROLLYARD_RUNS_DIR).resolve()
    if home.is_relative_to(place) or runs.is_relative_to(place):
        return f"{path} holds the installation's own files."
    if place.is_relative_to(runs):
        run = place.relative_to(runs).parts[0]
        if not readable.filter(key=run).exists():
            return f"{path} belongs to a run that is not there or not yours."
    elif place.is_relative_to(home) and place.relative_to(home).parts[0] not in _OPEN:
        return f"{path} belongs to the installation itself."
    return detour_of_it or ("" if place.is_relative_to(home) or place.is_relative_to(runs) else reserved(place))
