"""Whoever is dismissed is out everywhere: pages, sockets, tokens and Atropos addresses, within a minute.

Requests ask for the rights of now. Only a socket believes an answer for a while, and a test says for how long.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts import consumers, guesses
from rollouts.models import Membership, Role, Run, Scope
from rollouts.reasons import ReasonCode
from rollouts.selectors.runs import launcher_left
from rollouts.states import RunState
from tests.factories import make_run, make_user
from tests.hostile.application import JSON, Answer, LeavesEarly, call
from tests.hostile.case import good
from tests.hostile.wires import json_of
from tests.rollouts.api import make_token
from tests.rollouts.doors.atropos.api import item
from tests.rollouts.live.test_consumers import Page, elsewhere
from workers.convergence import Convergence

pytestmark = pytest.mark.django_db(transaction=True)

LONGEST_S = 60.0
"""What SECURITY.md promises."""
OPEN = 0
"""In place of the code that a socket is closed with."""


def deactivate(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def end_membership(user: User) -> None:
    Membership.objects.filter(user=user).delete()


def change_password(user: User) -> None:
    user.set_unusable_password()
    user.save()


def lower_role(user: User) -> None:
    Membership.objects.filter(user=user).update(role=Role.VIEWER)


class Doors(NamedTuple):
    """How each door answers: HTTP statuses, and the code that the socket of the run's page is closed with."""

    page: int = 200
    live: int = 200
    operating: int = 200
    """The page of the run that only operators see."""
    reading: int = 200
    """With a token."""
    submitting: int = 201
    atropos: int = 200
    socket: int = OPEN


class Staff(NamedTuple):
    """Somebody with an open page, a token and an address."""

    user: User
    run: Run
    browser: Client
    token: str

    def doors(self) -> Doors:
        """How they are answered now, all but the socket."""
        path, api = f"/runs/{self.run.key}/", f"/api/v1/runs/{self.run.key}"
        return Doors(
            page=self.browser.get(path).status_code,
            live=self.browser.get(f"{path}live/").status_code,
            operating=self.browser.get(f"{path}connect/").status_code,
            reading=self._ask("GET", api),
            submitting=self._ask("POST", f"{api}/groups", json_of(good())),
            atropos=self._ask("POST", f"/atropos/{self.run.address.key}/scored_data", json_of(item())),
        )

    def _ask(self, method: str, path: str, body: bytes = b"") -> int:
        headers = {"authorization": f"Token {self.token}", "content-type": JSON["content_type"]}
        answer = asyncio.run(call(method, path, headers, [body]))
        assert answer is not None
        return answer.status


@pytest.fixture
def staff() -> Staff:
    user = make_user("vera")
    run = make_run(preset="external-trainer", state=RunState.STARTING, user=user, epoch=0, live_version=-1)
    browser = Client()
    browser.force_login(user)
    return Staff(user, run, browser, make_token([Scope.READ, Scope.SUBMIT], user=user))


@pytest.mark.parametrize(
    ("dismiss", "left"),
    [
        (deactivate, Doors(302, 302, 302, 401, 401, 403, consumers.FORBIDDEN)),
        (end_membership, Doors(404, 404, 404, 404, 404, 403, consumers.FORBIDDEN)),
        # A viewer may look on, and nothing else.
        (lower_role, Doors(operating=403, submitting=403, atropos=403)),
    ],
)
def test_every_door_closes(
    staff: Staff, dismiss: Callable[[User], None], left: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "BELIEVED_FOR_S", 0.2)
    page = Page(staff.user)

    async def story() -> int:
        assert (await page.connect())["type"] == "websocket.accept"
        await page.subscribe(staff.run.key)
        assert (await page.heard())["run"] == staff.run.key
        await elsewhere(lambda: dismiss(staff.user))
        if left.socket == OPEN:
            assert await page.receive_nothing(1.0)
            return OPEN
        return await page.closed_with()

    assert staff.doors() == Doors(submitting=201), "before"
    socket = asyncio.run(story())
    assert staff.doors()._replace(socket=socket) == left


def test_a_socket_believes_no_answer_for_longer_than_is_promised() -> None:
    assert consumers.BELIEVED_FOR_S + consumers.INTERVAL_S < LONGEST_S


def test_a_page_of_a_run_that_may_not_be_seen_any_more_is_told_so_and_follows_nothing_else(staff: Staff) -> None:
    end_membership(staff.user)
    answer = staff.browser.get(f"/runs/{staff.run.key}/live/", headers={"HX-Request": "true"})
    assert (answer.status_code, answer["HX-Retarget"], answer["HX-Trigger"]) == (200, "#main", "live:ended")
    assert "You may not see this run any more" in answer.content.decode()
    assert staff.run.key not in answer.content.decode()


@pytest.mark.parametrize("dismiss", [deactivate, end_membership, lower_role])
def test_a_run_ends_when_whoever_launched_it_is_dismissed(dismiss: Callable[[User], None]) -> None:
    user = make_user("vera")
    run, other = make_run(user=user), make_run(user=make_user("ada"))
    dismiss(user)
    Convergence().converge(run.pk)
    run.refresh_from_db()
    assert run.state == RunState.FAILED
    assert run.reason.code is ReasonCode.LAUNCHER_LEFT
    assert "vera" in str(run.reason)
    assert not launcher_left(other)


def through_the_server(browser: Client, method: str, path: str, pieces: list[bytes]) -> Answer | None:
    """The answer to a request that a server hands over; those of a test client begin behind it."""
    session = browser.cookies["rollyard_session"].value
    return asyncio.run(call(method, path, {"cookie": f"rollyard_session={session}"}, pieces))


@pytest.mark.parametrize("dismiss", [deactivate, change_password])
def test_a_session_of_somebody_who_is_out_sends_no_large_body(staff: Staff, dismiss: Callable[[User], None]) -> None:
    pieces = [bytes(300_000), LeavesEarly(b"and 64 MB more")]
    assert through_the_server(staff.browser, "POST", "/api/v1/runs", pieces) is None, "all would have been read"
    dismiss(staff.user)
    answer = through_the_server(staff.browser, "POST", "/api/v1/runs", pieces)
    assert answer is not None
    assert answer.status == 401


@pytest.mark.parametrize("dismiss", [deactivate, change_password])
def test_a_session_of_somebody_who_is_out_opens_nothing(staff: Staff, dismiss: Callable[[User], None]) -> None:
    def is_known() -> bool:
        guesses.forget()
        assert through_the_server(staff.browser, "GET", "/", [b""]) is not None
        return guesses.is_known(staff.browser.cookies["rollyard_session"].value)

    assert is_known()
    dismiss(staff.user)
    assert not is_known()
