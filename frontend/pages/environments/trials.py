"""Try one episode of an environment: the form on its page, and the page on which it is played before one's eyes."""

import json
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from environments.types import Split
from frontend.access import actor, page
from frontend.conversation import spoken, told
from frontend.pages.environments.trial_form import TrialForm
from frontend.pages.environments.views import described
from rollouts.errors import Conflict, Forbidden, Invalid, StateConflict
from rollouts.models import Project, Role, Trial
from rollouts.selectors import runs
from rollouts.selectors import trials as selected
from rollouts.services.runs import trials

_WHOLE_KEYS = {"environments.0.name": "name", "environments.0.python": "python", "model.endpoint": "endpoint"}


@page
@require_POST
def attempt(request: HttpRequest, name: str) -> HttpResponse:
    """Ask a run's drivers for the episode that the form describes, and go where it is shown."""
    context = described(request, name)
    form = context["trial_form"]
    if form is None or not isinstance(request.user, User):
        raise PermissionDenied("Trying an environment needs the role operator in a project.")
    for key in ("run", "project", "endpoint", "args", "python", "split", "problem_index", "temperature", "max_turns"):
        setattr(form, key, request.POST.get(key, "").strip())
    try:
        trial = _begin(request, request.user, name, form)
    except Invalid as error:
        form.errors = {_field(key): fault for key, fault in error.fields.items()} or {"run": error.message}
    except (Conflict, StateConflict) as error:
        form.errors = {"run": error.message}
    else:
        return HttpResponseRedirect(reverse("trial", args=[trial.run.key, trial.key]))
    return render(request, "environments/environment.html", context | {"trial_form": form}, status=422)


@page
@require_safe
def trial(request: HttpRequest, key: str, trial: str) -> HttpResponse:
    """One trial: what was said so far, and what came of it. For htmx only the part that grows."""
    found = selected.get(runs.get(request.user, key), trial)
    record: dict[str, Any] = found.record
    context = {
        "trial": found,
        "run": found.run,
        "record": record,
        "reward": record.get("reward"),
        "messages_said": [each for each in record.get("messages", []) if any(spoken(each))],
        "tools": told(record.get("tools")),
        "live_runs": "" if found.is_over else found.run.key,
        "arguments": json.dumps(found.environment.get("args", {}), ensure_ascii=False),
    }
    is_part = bool(getattr(request, "htmx", False))
    return render(request, "environments/_trial.html" if is_part else "environments/trial.html", context)


def _begin(request: HttpRequest, user: User, name: str, form: TrialForm) -> Trial:
    args, fields = _read_json(form.args), {}
    if not isinstance(args, dict):
        fields["args"] = 'must be a JSON object, such as {"words": 1}'
    if not form.problem_index.isdecimal():
        fields["problem_index"] = "must be a whole number, 0 or more"
    if form.split not in [split.value for split in Split]:
        fields["split"] = "must be train or eval"
    temperature = _read_json(form.temperature) if form.temperature else None
    if temperature is not None and (isinstance(temperature, bool) or not isinstance(temperature, int | float)):
        fields["temperature"] = "must be a number, or empty: that of the run"
    if form.max_turns and not form.max_turns.isdecimal():
        fields["max_turns"] = "must be a whole number, or empty: that of the run"
    if not (form.run or form.endpoint):
        fields["run"] = "choose one, or an endpoint that plays alone"
    if fields:
        raise Invalid("Nothing is tried.", fields=fields)
    run = runs.get(user, form.run, Role.OPERATOR) if form.run else None
    project = run.project if run else _project(user, form.project)
    asked = trials.TrialRequest(
        project,
        trials.sampling_of(run, name, args) if run else trials.ALONE,
        name=name,
        args=args,
        python=form.python,
        split=Split(form.split),
        problem_index=int(form.problem_index[:12]),
        temperature=temperature,
        max_turns=int(form.max_turns[:9]) if form.max_turns else None,
        endpoint=form.endpoint,
    )
    who: Any = {"user": user, "readable": runs.for_user(user, Role.OPERATOR), "actor": actor(request)}
    return trials.begin(run, asked, **who) if run else trials.begin_alone(project, asked, **who)


def _project(user: User, slug: str) -> Project:
    """Where a run may be launched for it. Raises Forbidden."""
    found = runs.projects(user, Role.OPERATOR).filter(slug=slug).first()
    if found is None:
        raise Forbidden("A run is launched by an operator of its project, and you are none of this one.")
    return found


def _read_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def _field(key: str) -> str:
    """The field of the form that a key of the config is about."""
    return "args" if key.startswith("environments.0.args") else _WHOLE_KEYS.get(key, key)
