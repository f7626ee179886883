"""Fifty thousand calls out of a seed to every route, in everybody's name: no error of ours, none takes 2 s.

ROLLYARD_FUZZ_SEED=7 .venv/bin/pytest tests/hostile/test_fuzz.py                         the calls of another seed
ROLLYARD_FUZZ_SEED=7 ROLLYARD_FUZZ_CALL=1234 .venv/bin/pytest tests/hostile/test_fuzz.py one of them again
"""

import os
import random
import time
import traceback
from collections.abc import Iterator, Sequence

import pytest
from django.contrib import admin

from rollouts.doors.atropos.app import HANDLERS
from rollouts.errors import Unavailable
from rollouts.services import model_checks
from tests.access.admin import address
from tests.access.asking import send, undone
from tests.access.conftest import world as world  # two projects and their people
from tests.access.people import World
from tests.access.routes import pages
from tests.hostile.fuzz import Fuzz, Places, Request
from tests.lanes import IS_LONG, amount
from trainers.config import preset_names

PARTS = 10
BLOCK = 50
"""Calls after which all that they wrote is taken back: what one of them meets is of those before it in its block."""
CALLS = amount(3_000, 1_000_000) // PARTS
LONGEST_S = 2.0
SEED = int(os.environ.get("ROLLYARD_FUZZ_SEED") or (random.randrange(2**32) if IS_LONG else 1))
ONLY = os.environ.get("ROLLYARD_FUZZ_CALL")
MOST_SHOWN = 20
PASSES = (
    *(Unavailable().message, "The disk of the database is full", "Many sign in at this moment"),
    *("has not been started yet", "rollouts wait for the trainer already", "nothing is published any more"),
)
"""What a 503 may say. That the database is away is none of it: here it is not, so a query was one that it refused."""

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.timeout(amount(1200, 9000))]


@pytest.fixture
def fuzz(world: World, monkeypatch: pytest.MonkeyPatch) -> Fuzz:
    monkeypatch.setattr(model_checks, "_ask", lambda source: None)  # a process of its own for every name of the hub
    routes = [route for route in pages() if "^" not in route]
    cheap = [route for route in routes if route.startswith("api/") and not route.endswith(("schema", "docs"))]
    own, foreign = world.ours, world.theirs
    registered = admin.site._registry.items()
    rows = ("1", "0", str(own.values.pk), own.run.key, str(own.run.pk), str(own.project.pk))
    machines = {each.name: each.headers for each in world.machines}
    people = {each.name: each.headers for each in world.people}
    return Fuzz(
        SEED,
        Places(
            parameters={
                "key": [own.run.key, own.run.key, own.other.key, own.external.key, foreign.run.key],
                "group": [str(own.parameters()["group"])],
                "number": [str(own.values.pk), str(foreign.values.pk)],
                "project": [own.project.slug, foreign.project.slug],
                "name": [own.model.name],
                "object_id": list(rows),
                "id": list(rows),
                "content_type_id": list(rows),
            },
            dear=[route for route in routes if route not in cheap],
            cheap=cheap,
            sources=[
                *(f"preset={name}" for name in preset_names()),
                *(f"clone={run.key}" for run in (own.run, own.other, own.external)),
            ],
            presets=preset_names(),
            names=[own.model.name, foreign.model.name, f"{own.run.key}@0", f"{foreign.run.key}@0", own.run.key, "a/b"],
            project=own.project.slug,
            lists=[(address(model, "changelist", own) or "", each.date_hierarchy or "") for model, each in registered],
            atropos=list(HANDLERS),
            addresses=[own.external.address.key, own.run.address.key],
            machines=[
                machines["token: everything"],
                machines["token: bound to the run"],
                machines["token: expired"],
                {},
            ],
            people=[people["root"], people["root"], people["operator"]],
        ),
    )


def fault_of(request: Request) -> str:
    """What is wrong with what comes of it; empty when nothing is. Only who is slow three times is slow."""
    shortest_s = float("inf")
    for _ in range(3):
        began = time.monotonic()
        try:
            answer = send(request.method, request.target, request.headers, request.body)
        except Exception:  # noqa: BLE001 - what a server would make a 500 of
            return traceback.format_exc(limit=-6)
        shortest_s = min(shortest_s, time.monotonic() - began)
        is_passing = answer.status == 503 and any(words.encode() in answer.body for words in PASSES)
        if answer.status >= 500 and not is_passing:
            return f"{answer.status}: {answer.body[:300]!r}"
        if shortest_s <= LONGEST_S:
            return ""
    return f"it took {shortest_s:.1f} s"


@pytest.mark.parametrize("part", range(PARTS if ONLY is None else 1))
def test_no_call_is_an_error_of_ours_or_takes_long(fuzz: Fuzz, part: int) -> None:
    numbers = range(part * CALLS, (part + 1) * CALLS)
    if ONLY is not None:
        numbers = range(int(ONLY) // BLOCK * BLOCK, int(ONLY) + 1)
    began, faults = time.monotonic(), []
    for first in range(numbers.start, numbers.stop, BLOCK):
        with undone():
            faults += faults_of(fuzz, range(first, min(first + BLOCK, numbers.stop)))
    took_s = time.monotonic() - began
    print(f"seed {SEED}: {len(numbers):,} calls, {len(numbers) / took_s:,.0f} a second")
    assert not faults, f"{len(faults)} faults\n\n" + "\n\n".join(faults[:MOST_SHOWN])


def faults_of(fuzz: Fuzz, numbers: Sequence[int]) -> Iterator[str]:
    """The calls that are one, up to the first after which the database takes no more, and how to send them again."""
    for number in numbers:
        if fault := fault_of(request := fuzz.request(number)):
            again = f"ROLLYARD_FUZZ_SEED={SEED} ROLLYARD_FUZZ_CALL={number} .venv/bin/pytest tests/hostile/test_fuzz.py"
            yield f"{request}\n{fault}\nagain: {again}"
            return
