"""What the administration site opens to whom: one rule for every registered model."""

from collections.abc import Iterator

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Model
from django.urls import reverse

from rollouts.admin import StoreAdmin
from rollouts.admin.scope import path_to_project
from rollouts.models import ApiToken, Role
from tests.access.people import Person, World
from tests.access.world import Possessions
from tests.lanes import IS_LONG

MODELS = sorted(admin.site._registry, key=lambda model: model._meta.label)
PAGES = ("changelist", "add", "history", "delete", "change")
OF_ROWS = ("history", "delete", "change")
USUAL_OF_OTHERS = ("changelist", "delete")
"""Which pages are tried by people who are no staff whenever the tests run: one door stands before all of them."""


def routes() -> Iterator[str]:
    """Those of the models' pages, and the former address of a row, which leads to its page."""
    pages = ("", "add/", *(f"<path:object_id>/{page}/" for page in OF_ROWS), "<path:object_id>/")
    for model in MODELS:
        yield from (f"admin/{model._meta.app_label}/{model._meta.model_name}/{page}" for page in pages)


def is_scoped(model: type[Model]) -> bool:
    """Whether its rows are a project's, so that people of the project may look at them."""
    return model._meta.app_label == "rollouts" and path_to_project(model) is not None


def is_of_store(model: type[Model]) -> bool:
    """Whether only services write it."""
    return isinstance(admin.site.get_model_admin(model), StoreAdmin)


def may(person: Person, model: type[Model], page: str, method: str, of: Possessions) -> bool:
    """Whether somebody may send this to the page; what else is wrong with it is another matter."""
    if not (person.is_superuser or person.is_staff) or person.is_of_run:
        return False
    if model._meta.app_label != "rollouts":
        is_never = {"delete": model is User, "add": model._meta.app_label == "axes"}.get(page, False)
        return person.is_superuser and not is_never
    if page == "changelist":
        return True
    if page == "add":
        return not is_of_store(model)
    if not person.is_superuser and not (is_scoped(model) and person.has(Role.VIEWER, of.project.slug)):
        return False
    if page == "delete":
        return (not is_of_store(model) or model is ApiToken) and person.has(Role.ADMIN, of.project.slug)
    if method == "POST":
        return not is_of_store(model) and person.has(Role.ADMIN, of.project.slug)
    return True


def address(model: type[Model], page: str, of: Possessions) -> str | None:
    """Of the page, of a row of the project; None where it has none."""
    args = []
    if page in OF_ROWS:
        if (row := of.row(model)) is None:
            return None
        args = [row.pk]
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


CALLS = [(page, method) for page in PAGES for method in ("GET", "POST") if (page, method) != ("history", "POST")]
"""(page, method) of every model."""


def cells(world: World) -> Iterator[tuple[str, str, Person, Possessions]]:
    """(page, method, person, of whom) of every model."""
    for page, method in CALLS:
        for person in (*world.people, *world.staff):
            if not (IS_LONG or person.is_superuser or person.is_staff or page in USUAL_OF_OTHERS):
                continue
            yield page, method, person, world.ours
            if page in OF_ROWS:
                yield page, method, person, world.theirs
