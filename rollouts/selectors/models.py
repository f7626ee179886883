"""Reads of registered models: who may see which, by name, and what could make one that is missing."""

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Count, QuerySet

from rollouts.errors import Forbidden, NotFound
from rollouts.models import Checkpoint, Model, Project, Role, Run
from rollouts.selectors import runs
from rollouts.states import CheckpointState
from trainers.config import load_preset, preset_names


def for_user(user: User | AnonymousUser, at_least: Role = Role.VIEWER) -> QuerySet[Model]:
    """The models of projects in which the user has at least this role."""
    return Model.objects.filter(project__in=runs.projects(user, at_least))


def list_models(user: User | AnonymousUser) -> QuerySet[Model]:
    """The models the user may see, newest first, with the number of runs that started from each. One query."""
    found = for_user(user).select_related("project", "run", "created_by")
    return found.annotate(run_count=Count("runs")).order_by("-id")


def get(user: User | AnonymousUser, project: str, name: str, at_least: Role = Role.VIEWER) -> Model:
    """A model by project and name. Raises NotFound if the user may not see it, Forbidden if the role is too low."""
    model = for_user(user).select_related("project", "run", "created_by").filter(project__slug=project, name=name)
    found = model.first()
    if found is None:
        raise NotFound(f"There is no model {name} in project {project}, or you may not see it.")
    if at_least is not Role.VIEWER and not for_user(user, at_least).filter(pk=found.pk).exists():
        raise Forbidden(f"This needs the role {at_least.value} in project {found.project}.")
    return found


def list_runs(model: Model, limit: int = 20) -> list[Run]:
    """The newest runs that started from it."""
    return list(model.runs.select_related("created_by").order_by("-id")[:limit])


def find_checkpoint(model: Model) -> Checkpoint | None:
    """The complete checkpoint of the run and step that a model is the result of, to fork from."""
    if model.run is None or model.step is None:
        return None
    return Checkpoint.objects.filter(run=model.run, step=model.step, state=CheckpointState.COMPLETE).first()


def preset_that_makes(name: str) -> str | None:
    """The shipped preset whose run registers its result under this name."""
    makers = (preset for preset in preset_names() if load_preset(preset).get("register_as") == name)
    return next(makers, None) if name else None


def find_maker(project: Project, name: str) -> Run | None:
    """The newest run of the project that was to register its result under this name; it may be over."""
    return Run.objects.filter(project=project, config__register_as=name).order_by("-id").first()
