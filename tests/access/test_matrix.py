"""Every route against everybody, with what is of their project and what is of another's.

route of the resolver, of the Atropos door, of the sockets ── rule ──► who may
                                                                        │
everybody × own and foreign ── the whole ASGI application ──► answer ───┴─► allowed: no refusal
                                                                         refused: a refusal, and no row changed
"""

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
import pytest
from django.db.models import Model

from tests.access import admin
from tests.access.asking import Outcome, ask
from tests.access.people import ANONYMOUS, Person, World
from tests.access.routes import atropos, filled, pages
from tests.access.rules import ADMIN, API, ATROPOS, PAGES, Call, nobody
from tests.access.world import Possessions
from tests.hostile.application import Answer

pytestmark = pytest.mark.django_db
RULES = PAGES | ADMIN | API
REFUSED = {401, 403, 404, 405, 410}
FORM = {"content-type": "application/x-www-form-urlencoded"}


def is_refusal(answer: Answer, written: dict[str, int]) -> bool:
    """Whether whoever asked was told that they may not, or to sign in."""
    if answer.status == 302:  # of the administration site, whose start page says that there is no such row
        location = answer.headers["location"]
        return "/login/?next=" in location or (location == "/admin/" and not written)
    return answer.status in REFUSED


class Request(NamedTuple):
    """What somebody sends. The same of the same person, and it is not asked again: nothing of it is of a project."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


def framed(method: str, route: str, call: Call, person: Person, of: Possessions) -> Request:
    """The call of a rule, as somebody sends it."""
    path = call.path or filled(route, of.parameters() | {"key": call.run(of).key})
    body, kind = call.body(of), "application/json"
    if call.is_form:
        body, kind = urlencode(body).encode(), "application/x-www-form-urlencoded"
    elif not isinstance(body, bytes):
        body = msgspec.json.encode(body)
    headers = {"content-type": kind, **call.headers(of), **person.headers}
    return Request(method, f"{path}?{call.query}", headers, body)


def send(method: str, route: str, call: Call, person: Person, of: Possessions) -> Outcome:
    """Send the call of a rule."""
    return ask(*framed(method, route, call, person, of), person.state)


def check(
    method: str, route: str, call: Call, person: Person, of: Possessions, world: World, asked: list[Any]
) -> Iterator[str]:
    """What is wrong with the answer to one cell; ``asked``: what was asked before."""
    may = call.need(person, of, call.run(of)) and not (person.is_forged and method == "POST")
    request = framed(method, route, call, person, of)
    if (person, may, request) in asked:
        return iter(())
    asked.append((person, may, request))
    outcome = ask(*request, person.state)
    if person.name == "token: expired":
        outcome.written.pop("rollouts_apitoken", None)  # whose row goes at its next use
    what = f"{method} /{route} of {of.project} by {person}"
    return judged(what, outcome, person, may=may, world=world, writes=method != "GET" or bool(call.writes))


def judged(
    what: str, outcome: Outcome, person: Person, *, may: bool, world: World, writes: bool = True
) -> Iterator[str]:
    """What is wrong with an answer: a sentence for each fault."""
    (answer, written), what = outcome, f"{what}: {outcome.answer.status}"
    if answer.status >= 500:
        yield f"{what}, an error of ours: {answer.body[:300]!r}"
    if may and is_refusal(answer, written):
        yield f"{what}, but the rule says that they may: {answer.body[:300]!r}"
    if not may and not is_refusal(answer, written):
        yield f"{what}, but the rule says that they may not"
    if written and not may:
        yield f"{what}, and yet it wrote {written}"
    if written and may and not writes:
        yield f"{what}: a GET wrote {written}"
    if shown := [mark for mark in world.marks_hidden_from(person) if mark.encode() in answer.body]:
        yield f"{what} says {shown} to somebody who may not see it"


def test_every_route_has_a_rule_and_every_rule_a_route() -> None:
    routes = set(pages()) - set(admin.routes())
    missing = sorted(routes - RULES.keys())
    assert not missing, f"say in tests/access/rules.py who may use {missing}"
    assert RULES.keys() <= routes, f"there are no routes any more for the rules of {sorted(RULES.keys() - routes)}"


def test_every_call_of_the_atropos_protocol_has_a_rule() -> None:
    missing = sorted(set(atropos()) - ATROPOS.keys())
    assert not missing, f"say in tests/access/rules.py what may be done with an address by {missing}"
    assert ATROPOS.keys() <= set(atropos())


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method"), ATROPOS)
def test_only_a_good_address_opens_its_run(world: World, path: str, method: str) -> None:
    call, faults = ATROPOS[path, method], []
    root = next(person for person in world.people if person.name == "root")
    for key in world.keys:
        for person in (ANONYMOUS, root):  # whom it does not matter who asks
            body = b"" if call.body is None else msgspec.json.encode(call.body)
            headers = {"content-type": "application/json", **person.headers}
            answer, written = ask(method, f"/atropos/{key.key}/{path}", headers, body)
            what = f"{method} {path} with an address that is {key.name}: {answer.status}"
            written = {table: rows for table, rows in written.items() if table != "rollouts_address"}
            if answer.status >= 500 and not (key.opens and "retry-after" in answer.headers):
                faults.append(f"{what}, an error of ours: {answer.body[:300]!r}")
            if (answer.status in {401, 403, 404}) == key.opens:
                faults.append(f"{what}, but it {'opens' if key.opens else 'does not open'} the run")
            if written and (not key.opens or (method == "GET" and not call.writes)):
                faults.append(f"{what} wrote {written}")
    assert not faults, "\n".join(faults)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "GET", "POST"])
def test_a_method_that_no_rule_names_changes_nothing(world: World, method: str) -> None:
    faults, named = [], {each.name: each for each in (*world.people, *world.machines)}
    for route, rule in RULES.items():
        if method not in rule:
            person = named["token: everything" if route in API else "root"]
            outcome = send(method, route, Call(nobody, path=next(iter(rule.values())).path), person, world.ours)
            if outcome.written or outcome.answer.status >= 500:
                faults.append(f"{method} /{route}: {outcome.answer.status}, wrote {outcome.written}")
    assert not faults, "\n".join(faults)


def label(model: type[Model]) -> str:
    return model._meta.label_lower


@pytest.mark.slow
@pytest.mark.parametrize("route", RULES)
def test_a_route_opens_to_those_whom_its_rule_names_and_to_nobody_else(world: World, route: str) -> None:
    asked: list[Any] = []
    faults = [
        fault
        for method, call in RULES[route].items()
        for person, of in world.cells(for_machines=route in API)
        for fault in check(method, route, call, person, of, world, asked)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.slow
@pytest.mark.parametrize("model", admin.MODELS, ids=label)
def test_the_administration_site_opens_a_model_to_staff_of_the_project_and_to_nobody_else(
    world: World, model: type[Model]
) -> None:
    faults = []
    for page, method, person, of in admin.cells(world):
        if (path := admin.address(model, page, of)) is not None:
            may = admin.may(person, model, page, method, of) and not person.is_forged
            outcome = ask(method, path, person.headers | FORM, b"post=yes", person.state)
            faults += judged(f"{method} {path} by {person}", outcome, person, may=may, world=world)
    assert not faults, "\n".join(faults)
