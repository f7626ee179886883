"""No request has a field of which nobody has said whether it names something of a project."""

from dataclasses import replace
from itertools import product

import pytest
from django.contrib.auth.models import User
from django.test import RequestFactory

from tests.access import fields, test_bodies
from tests.access.people import ANONYMOUS, Person, World
from tests.access.rules import PAGES
from tests.access.test_matrix import send
from trainers.config import preset_names
from trainers.run_config.keys import all_keys

pytestmark = pytest.mark.django_db


def fields_of_pages(world: World) -> set[str]:
    """What each page looks for when it is sent what its rule sends; that of a launch with every preset."""
    found = set()
    for route, rule in PAGES.items():
        is_launch = route.startswith("runs/new/")
        for method, call in rule.items():
            queries = {call.query, *(f"preset={name}" for name in preset_names() if is_launch)}
            with fields.read_of_forms() as names:
                for query, person in product(queries, (root_of(world), ANONYMOUS)):
                    send(method, route, replace(call, query=query), person, world.ours)
            names -= {name for name in names if is_launch and is_of_config(name)} | {"csrfmiddlewaretoken"}
            found |= {f"{route} {name}" for name in names}
    return found


def root_of(world: World) -> Person:
    return next(person for person in world.people if person.name == "root")


def is_of_config(name: str) -> bool:
    """Keys of the config and switches of its sections, which the form has as fields."""
    is_part = "." in name and any(key.startswith(f"{name}.") for key in all_keys())
    return name in all_keys() or name.endswith(".on") or is_part


def test_every_field_names_nothing_or_has_a_case(world: World) -> None:
    request = RequestFactory().get("/")
    request.user = User.objects.get(username="root")
    known = {*fields.fields_of_api(), *fields.fields_of_atropos(), *fields.fields_of_config()}
    known |= {*fields.fields_of_admin(request), *fields_of_pages(world)}
    said = fields.NAMING.keys() | {f"{at} {name}" for at, names in fields.HARMLESS.items() for name in names.split()}
    assert not (missing := sorted(known - said)), f"say in tests/access/fields.py what {missing} may name"
    assert not (gone := sorted(said - known)), f"there are no fields any more for {gone}"


@pytest.mark.parametrize("field", fields.NAMING)
def test_what_names_something_has_a_case(field: str) -> None:
    cases = test_bodies.CASES.keys() | vars(test_bodies).keys()
    assert set(fields.NAMING[field]) <= cases
