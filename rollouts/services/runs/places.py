"""Which files a launched run may be given: none of the installation's own, none of a run that its launcher may not see.

What a config names is shown to the run's sandbox, so naming it is reading it.
"""

from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.db.models import QuerySet

from rollouts.errors import Invalid
from rollouts.models import Model, Project, Run
from trainers.run_config import RunConfig

_OPEN = ("demo", "models")
"""What of the home holds nothing but models."""


def check(config: RunConfig, *, project: Project, readable: QuerySet[Run], forks: bool = False) -> None:
    """Raise Invalid at every key that names a place no run of this launcher may read.

    ``readable``: the runs whose files the launcher may use. What is registered in ``project`` may be read as well. With
    ``forks``, `model.path` is what the fork made of it.
    """
    named = list(_named(config, forks=forks))
    faults = {
        key: fault
        for key, path in named
        if path and Path(path).is_absolute() and (fault := _fault(Path(path), readable))
    }
    if faults:
        registered = Model.objects.filter(project=project, source__in=[path for _, path in named])
        known = set(registered.values_list("source", flat=True))
        faults = {key: fault for key, fault in faults.items() if dict(named)[key] not in known}
    if faults:
        raise Invalid("Nothing was launched: the run may not read that.", fields=faults)


def _named(config: RunConfig, *, forks: bool) -> Iterator[tuple[str, str]]:
    if not forks:
        yield "model.path", config.model.path
    yield "model.lora.path", config.model.lora.path
    if config.data is not None:
        yield "data.path", config.data.path
        if config.data.validation is not None:
            yield "data.validation.path", config.data.validation.path


def _fault(path: Path, readable: QuerySet[Run]) -> str:
    try:
        place = path.resolve()
    except (OSError, ValueError) as error:
        return f"{str(path)[:100]} is no path here: {getattr(error, 'strerror', None) or error}."
    home, runs = settings.HOME.path.resolve(), Path(settings.ROLLYARD_RUNS_DIR).resolve()
    if home.is_relative_to(place) or runs.is_relative_to(place):
        return f"{path} holds the installation's own files."
    if place.is_relative_to(runs):
        key = place.relative_to(runs).parts[0]
        return "" if readable.filter(key=key).exists() else f"{path} belongs to a run that is not there or not yours."
    if place.is_relative_to(home) and place.relative_to(home).parts[0] not in _OPEN:
        return f"{path} belongs to the installation itself."
    return ""
