"""Bodies that are too large: nobody reads more of them than it may."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.test import Client

from controlplane.asgi import application
from rollouts.models import Scope
from tests.factories import make_run, make_user
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem, row_counts

pytestmark = pytest.mark.django_db


def test_a_body_over_the_limit_is_refused(settings: Any) -> None:
    run, api = make_run(), Api(make_token())
    body = msgspec.json.encode([story.scored(str(number)) for number in range(20)])
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = len(body) - 1
    before = row_counts()
    problem(api.post(f"runs/{run.key}/groups", body), 413, "too_large")
    assert row_counts() == before
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = len(body)
    assert api.post(f"runs/{run.key}/groups", body).status_code == 201


@pytest.mark.django_db(transaction=True)
def test_a_body_in_chunks_is_read_no_further_than_the_limit(settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10_000
    run, token = make_run(), make_token()
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/api/v1/runs/{run.key}/groups",
        "headers": [
            (b"host", b"testserver"),
            (b"authorization", f"Token {token}".encode()),
            (b"content-type", b"application/json"),
            (b"transfer-encoding", b"chunked"),
        ],
        "query_string": b"",
    }

    async def send() -> tuple[int, bytes]:
        web = ApplicationCommunicator(application, scope)
        for number in range(5):
            await web.send_input({"type": "http.request", "body": b"[" * 4000, "more_body": number < 4})
        head, body = await web.receive_output(15), await web.receive_output(15)
        await web.wait(15)
        return head["status"], body["body"]

    status, body = asyncio.run(send())
    assert (status, json.loads(body)["code"]) == (413, "too_large")


async def call(web: Any, path: str, headers: dict[str, str], pieces: int) -> tuple[list[int], int]:
    """What a request whose body has pieces of 128 KiB is answered, and how many of them were received."""
    received, statuses = 0, []

    async def receive() -> Any:
        nonlocal received
        received += 1
        if received > pieces:  # the client waits for the answer
            return await asyncio.Future()
        return {"type": "http.request", "body": bytes(2**17), "more_body": received < pieces}

    async def send(message: Any) -> None:
        statuses.append(message["status"]) if "status" in message else None

    raw = [(name.encode(), value.encode()) for name, value in {"host": "testserver", **headers}.items()]
    await web({"type": "http", "method": "POST", "path": path, "headers": raw, "query_string": b""}, receive, send)
    return statuses, received


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/runs/x/groups", "/api/v1/runs/x/stop"])
def test_no_view_of_the_api_reads_more_than_the_limit(settings: Any, path: str) -> None:
    """Django itself would write any body to a file before it looks at the request."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 2**18
    assert asyncio.run(call(application, path, {}, 100)) == ([413], 3)
    assert asyncio.run(call(application, path, {"content-length": str(2**18 + 1)}, 100)) == ([413], 1)


def signed_in(name: str) -> str:
    """A new user's session, as its cookie says it."""
    browser = Client()
    browser.force_login(make_user(name))
    return browser.cookies[settings.SESSION_COOKIE_NAME].value


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "Multipart/Form-Data; boundary=x", "text/plain"])
@pytest.mark.parametrize("path", ["/nowhere", "/login/", "/runs/new/", "/admin/login/"])
def test_no_page_reads_more_than_a_form_whatever_it_is_called(path: str, kind: str) -> None:
    assert asyncio.run(call(application, path, {"content-type": kind}, 100)) == ([403], 1), "of a stranger"
    declared = {"content-type": kind, "content-length": "65537"}
    assert asyncio.run(call(application, path, declared, 100)) == ([403], 1)
    cookie = {"cookie": f"{settings.SESSION_COOKIE_NAME}={signed_in('vera')}"}
    assert asyncio.run(call(application, path, {"content-type": kind, **cookie}, 100)) == ([413], 9), "behind 1 MiB"
    declared = {"content-type": kind, "content-length": str(2**20 + 1), **cookie}
    assert asyncio.run(call(application, path, declared, 100)) == ([413], 1)


@pytest.mark.django_db(transaction=True)
def test_a_long_correction_is_read_to_its_end_of_who_is_signed_in_and_of_nobody_else() -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    cookie = {"cookie": f"{settings.SESSION_COOKIE_NAME}={signed_in('vera')}"}
    statuses, received = asyncio.run(call(application, "/queues/x/say/", {**form, **cookie}, 7))
    assert (statuses, received >= 7) == ([403], True), "it lacks what a form has against forgery"
    assert asyncio.run(call(application, "/queues/x/say/", form, 7)) == ([403], 1)


@pytest.mark.django_db(transaction=True)
def test_who_sends_a_large_body_is_asked_before_all_of_it_is_kept() -> None:
    run = make_run()
    path, stranger = f"/api/v1/runs/{run.key}/groups", {"authorization": f"Token ry_{'x' * 60}"}
    assert asyncio.run(call(application, path, stranger, 20)) == ([401], 3)
    reader = {"authorization": f"Token {make_token(scopes=[Scope.READ])}"}
    assert asyncio.run(call(application, path, reader, 20)) == ([403], 3)
    friend = {"authorization": f"Token {make_token()}", "content-type": "application/json"}
    assert asyncio.run(call(application, path, friend, 20)) == ([400], 20)


@pytest.mark.django_db(transaction=True)
def test_a_large_body_for_a_view_is_read_for_nobody_but_users() -> None:
    session = signed_in("vera")
    path = "/api/v1/runs"
    assert asyncio.run(call(application, path, {}, 20)) == ([401], 3)
    assert asyncio.run(call(application, path, {"cookie": "rollyard_session=x"}, 20)) == ([401], 3)
    assert asyncio.run(call(application, path, {"authorization": "Token x"}, 20)) == ([401], 3)
    statuses, received = asyncio.run(call(application, path, {"cookie": f"rollyard_session={session}"}, 20))
    assert (statuses, received >= 20) == ([403], True), "it lacks what a form has against forgery"
