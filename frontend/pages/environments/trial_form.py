"""The form that asks for a trial: what it offers, what somebody typed, and what is wrong with that."""

import json
from dataclasses import dataclass, field

from django.conf import settings
from django.http import HttpRequest

from environments import venvs
from environments.types import Split
from rollouts.models import Project, Role, Run
from rollouts.selectors import runs, trials
from rollouts.services.endpoints import usable


@dataclass
class TrialForm:
    """What somebody filled in, as text, and what is wrong with it."""

    run: str = ""
    """Empty: the endpoint plays in a run of its own, in the project."""
    project: str = ""
    endpoint: str = ""
    args: str = "{}"
    python: str = ""
    split: str = Split.TRAIN.value
    problem_index: str = "0"
    temperature: str = ""
    max_turns: str = ""
    answering: list[Run] = field(default_factory=list)
    """Runs that could play it."""
    endpoints: list[str] = field(default_factory=list)
    """Names of what may play in place of their policies, or alone."""
    projects: list[Project] = field(default_factory=list)
    """Where it could play alone."""
    pythons: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


def blank_form(request: HttpRequest, name: str, played_by: list[Run]) -> TrialForm:
    """The form as it is first shown. ``played_by``: runs that play the environment.

    A run that plays it comes first, and its arguments with it.
    """
    operated = runs.for_user(request.user, Role.OPERATOR)
    projects = list(runs.projects(request.user, Role.OPERATOR).order_by("name"))
    playing = {run.pk: run for run in played_by}
    found = trials.answering(operated).select_related("project")
    answering = sorted(found, key=lambda run: (run.pk not in playing, -run.pk))
    form = TrialForm(
        answering=answering,
        endpoints=[each.name for each in usable(*projects)],
        projects=projects,
        pythons=[venv.name for venv in venvs.listing(settings.ROLLYARD_HOME / venvs.DIRECTORY)],
    )
    form.run = answering[0].key if answering else ""
    if answering and answering[0].pk in playing:
        ref = next(ref for ref in answering[0].parsed.environments if ref.name == name)
        form.args, form.python = json.dumps(ref.args, ensure_ascii=False), ref.python
    return form
