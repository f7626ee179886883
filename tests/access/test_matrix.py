"""Every route against everybody, with what is of their project and what is of another's.

route of the resolver, of the Atropos door, of the sockets ── rule ──► who may
                                                                        │
everybody × own and foreign ── the whole ASGI application ──► answer ───┴─► allowed: no refusal
                                                                         refused: a refusal, and no row changed
"""

from urllib.parse import urlencode

import msgspec
import pytest

from tests.access.asking import Outcome, ask
from tests.access.people import Person, World
from tests.access.routes import filled, pages
from tests.access.rules import API, PAGES, Call
from tests.access.world import Possessions
from tests.hostile.application import Answer

pytestmark = pytest.mark.django_db
RULES = PAGES | API
REFUSED = {401, 403, 404, 405, 410}
ADMIN = "admin/"


def is_refusal(answer: Answer) -> bool:
    """Whether whoever asked was told that they may not, or to sign in."""
    return answer.status in REFUSED or (answer.status == 302 and "/login/?next=" in answer.headers["location"])


def send(method: str, route: str, call: Call, person: Person, of: Possessions) -> Outcome:
    """The call of a rule, as somebody sends it."""
    path = call.path or filled(route, of.parameters() | {"key": call.run(of).key})
    body, kind = call.body(of), "application/json"
    if call.is_form:
        body, kind = urlencode(body).encode(), "application/x-www-form-urlencoded"
    elif not isinstance(body, bytes):
        body = msgspec.json.encode(body)
    headers = {"content-type": kind, **call.headers(of), **person.headers}
    return ask(method, f"{path}?{call.query}", headers, body, person.state)


def check(method: str, route: str, call: Call, person: Person, of: Possessions, world: World) -> str:
    """What is wrong with the answer; empty when it is right."""
    answer, written = send(method, route, call, person, of)
    what = f"{method} /{route} of project {of.project.slug} by {person}: {answer.status}"
    may = call.need(person, of, call.run(of)) and not (person.is_forged and method == "POST")
    if answer.status >= 500:
        return f"{what}, an error of ours: {answer.body[:300]!r}"
    if may and is_refusal(answer):
        return f"{what}, but the rule says that they may: {answer.body[:300]!r}"
    if not may and not is_refusal(answer):
        return f"{what}, but the rule says that they may not"
    if person.name == "token: expired":
        written.pop("rollouts_apitoken", None)  # whose row goes at its next use
    if written and not may:
        return f"{what}, and yet it wrote {written}"
    if written and method == "GET" and not call.writes:
        return f"{what}: a GET wrote {written}"
    shown = [mark for mark in world.marks_hidden_from(person) if mark.encode() in answer.body]
    return f"{what} says {shown} to somebody who may not see it" if shown else ""


def test_every_route_has_a_rule_and_every_rule_a_route() -> None:
    routes = {route for route in pages() if not route.startswith(ADMIN)}
    missing = sorted(routes - RULES.keys())
    assert not missing, f"say in tests/access/rules.py who may use {missing}"
    assert RULES.keys() <= routes, f"there are no routes any more for the rules of {sorted(RULES.keys() - routes)}"


@pytest.mark.parametrize("route", RULES)
def test_a_route_opens_to_those_whom_its_rule_names(world: World, route: str) -> None:
    faults = [
        fault
        for method, call in RULES[route].items()
        for person, of in world.cells(with_tokens=route in API)
        if (fault := check(method, route, call, person, of, world))
    ]
    assert not faults, "\n".join(faults)
