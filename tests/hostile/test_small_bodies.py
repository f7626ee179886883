"""Every field of every other body of both APIs, with every odd value: never an error of ours, nothing by halves."""

from typing import Any

import pytest

from rollouts.models import Run
from tests.hostile.application import Target, check_refusal
from tests.hostile.case import MISSING
from tests.hostile.corpus import ODD_VALUES
from tests.hostile.wires import Wire, json_of
from tests.lanes import IS_LONG
from tests.rollouts.api import row_counts
from tests.rollouts.doors.atropos.api import introduction, item, registration

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
FILES = {"path": "/x", "manifest_sha256": "a" * 64, "size_bytes": 1}
NATIVE: dict[str, dict[str, Any]] = {
    "work/claim": {"holder": "h", "limit": 1},
    "work/renew": {"tokens": ["0" * 32]},
    "work/settle": {"token": "0" * 32, "problem_key": "p", "rollouts": []},
    "steps/0": {"metrics": {"a": 1.0}, "batch_sha256": None},
    "policy-versions": {"version": 1, **FILES},
    "checkpoints": {"step": 0, **FILES},
    "trainer": {"world_size": 1, "hostname": "h", "pid": 1},
    "replays": {"source": "nosuchrun", "first_step": 0, "last_step": 0, "reason": ""},
    "stop": {"reason": "r"},
}
LAUNCH = {"preset": "reverse-text-rl", "config": {"name": "n"}, "overrides": {"max_steps": 1}, "project": "words"}
ATROPOS: dict[str, dict[str, Any]] = {
    "register": registration(),
    "register-env": introduction(min_batch_allocation=0.5),
    "disconnect-env": {"env_id": 0},
}
GETS = ["", "info", "status", "wandb_info", "latest_example", "batch", "status-env?env_id=0", "status-env?env_id=-1"]


def changes(body: dict[str, Any]) -> list[tuple[str, Any]]:
    """(what was changed, the body with it): each field in turn, and the whole."""
    changed = [(f"{key} {name}", {**body, key: value}) for key in body for name, value in ODD_VALUES.items()]
    changed = [(name, {key: each for key, each in body.items() if each is not MISSING}) for name, body in changed]
    return [*changed, *((name, value) for name, value in ODD_VALUES.items() if value is not MISSING)]


@pytest.mark.parametrize("path", NATIVE)
def test_every_value_of_a_native_body_is_taken_or_refused(target: Target, path: str) -> None:
    run = target.spare if path in {"stop", "trainer"} else target.run
    before = row_counts()
    for name, body in changes(NATIVE[path]):
        headers = {**target.credentials, "rollyard_epoch": str(Run.objects.get(pk=run.pk).epoch)}
        answer = target.ask("POST", f"/api/v1/runs/{run.key}/{path}", json_of(body), **headers)
        if answer.status >= 300:
            check_refusal(answer)
            assert row_counts() == before, name
        else:
            before = row_counts()


def test_every_value_of_a_launch_is_taken_or_refused(target: Target) -> None:
    before = row_counts()
    for name, body in changes(LAUNCH):
        answer = target.ask("POST", "/api/v1/runs", json_of(body), **target.credentials)
        if answer.status >= 300:
            check_refusal(answer)
            assert row_counts() == before, name
        else:
            before = row_counts()


@pytest.mark.parametrize("path", ATROPOS)
def test_every_value_of_an_atropos_body_is_taken_or_refused(target: Target, path: str) -> None:
    is_fresh = False
    for number, (name, body) in enumerate(changes(ATROPOS[path])):
        if not is_fresh:
            assert target.atropos("GET", "reset_data").status == 200
            if path != "register":
                assert target.atropos("POST", "register", json_of(registration())).status == 200
                assert target.atropos("GET", "batch").status == 200
            before = row_counts()
        answer = target.atropos("POST", path, json_of(body))
        is_fresh = answer.status != 200
        if is_fresh:
            check_refusal(answer, Wire.ATROPOS)
            assert row_counts() == before, name
            continue
        assert target.atropos("POST", "scored_data", json_of(item(env_id=0))).status == 200, name
        for get in GETS if IS_LONG else {GETS[number % len(GETS)], "batch"}:
            assert target.atropos("GET", get).status == 200, (name, get)
