"""The same requests to the server of atroposlib and to a run: the same answers, but for the listed differences."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.atroposlib.dialogue import DIALOGUE, Step
from tests.atroposlib.parties import launch, running, tail
from tests.e2e.yard import POLL_S, Yard, until
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

Parts = dict[str, Any]
LENGTHS = ("/status", "/status-env")
FORGOTTEN_S = 10.0
"""The length of a queue that took long to count is remembered for a while; so long it is asked for again."""
NO_KEEPALIVE = httpx.Limits(max_keepalive_connections=0)
"""Theirs hangs up after an error of its own without saying so."""


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, limits=NO_KEEPALIVE, timeout=30)


@pytest.fixture
def original(atropos_bin: Path, tmp_path: Path) -> Iterator[httpx.Client]:
    """The server of atroposlib, fresh."""
    port, log = free_port(), tmp_path / "run-api.log"
    command = [str(atropos_bin / "run-api"), "--host", "127.0.0.1", "--port", str(port)]
    with running(command, log, {}) as process, client_of(f"http://127.0.0.1:{port}") as client:

        def is_up() -> bool:
            assert process.poll() is None, tail(log)
            try:
                return client.get("/").is_success
            except httpx.TransportError:
                return False

        until(is_up, within_s=60, what="run-api to answer")
        yield client


@pytest.fixture
def ours(yard: Yard) -> Iterator[httpx.Client]:
    with client_of(launch(yard)[1]) as client:
        yield client


def parts(answer: httpx.Response) -> Parts:
    """What clients see of an answer: `status`, `type`, and the body, key by key if it is an object."""
    found: Parts = {
        "status": answer.status_code,
        "type": answer.headers.get("content-type", "").partition(";")[0] if answer.content else "",
        "encoding": answer.headers.get("content-encoding", ""),
        "allow": answer.headers.get("allow", ""),
    }
    try:
        body = json.loads(answer.content)
    except ValueError:
        return found | {"body": answer.text}
    if not isinstance(body, dict):
        return found | {"body": body}
    if "uuid" in body:
        body["uuid"] = type(body["uuid"]).__name__
    return found | {f"body.{key}": value for key, value in body.items()}


def differences(theirs: Parts, ours: Parts) -> frozenset[str]:
    """Names of the parts that differ; `body` when one of the two is no object with the other's keys."""
    paths = {
        path for path in {*theirs, *ours} if theirs.get(path) != ours.get(path) or (path in theirs) != (path in ours)
    }
    bodies = [{path for path in each if path.startswith("body")} for each in (theirs, ours)]
    if bodies[0] != bodies[1]:
        paths = {path for path in paths if not path.startswith("body")} | {"body"}
    return frozenset(paths)


def ask(client: httpx.Client, step: Step) -> Parts:
    return parts(client.request(step.method, step.path, **step.options))


def answers(original: httpx.Client, ours: httpx.Client, step: Step) -> tuple[Parts, Parts]:
    """Theirs and ours."""
    theirs, own = ask(original, step), ask(ours, step)
    deadline = time.monotonic() + FORGOTTEN_S
    while step.path in LENGTHS and differences(theirs, own) != step.differs and time.monotonic() < deadline:
        time.sleep(POLL_S)
        own = ask(ours, step)
    return theirs, own


def items(found: list[Parts]) -> list[str]:
    """All groups that were handed out, in an order of their own."""
    return sorted(json.dumps(item, sort_keys=True) for each in found for item in each.get("body.batch") or ())


def test_every_answer_is_that_of_the_original_or_a_listed_difference(
    original: httpx.Client, ours: httpx.Client
) -> None:
    theirs, own = [], []
    wrong = []
    for step in DIALOGUE:
        pair = answers(original, ours, step)
        theirs.append(pair[0])
        own.append(pair[1])
        if (found := differences(*pair)) != step.differs:
            wrong.append(
                f"{step.name}: {[(part, *(each.get(part) for each in pair)) for part in found] or 'no difference'}"
            )
    assert not wrong, "\n".join(wrong)
    assert len(items(own)) == 10
    assert items(own) == items(theirs)


def test_every_difference_has_a_reason() -> None:
    assert [step.name for step in DIALOGUE if bool(step.differs) != bool(step.because)] == []
