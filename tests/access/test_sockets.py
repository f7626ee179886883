"""Who hears of which run: everybody at the socket of the pages, of whichever project the run is."""

import asyncio

import pytest
from django.contrib.auth.models import User

from rollouts import consumers
from rollouts.models import Role
from tests.access.routes import sockets
from tests.factories import make_project, make_run, make_user
from tests.rollouts.live.test_consumers import Page

pytestmark = pytest.mark.django_db(transaction=True)


def test_there_is_one_socket() -> None:
    assert list(sockets()) == ["ws/"], "say in tests/access/test_sockets.py who may open the others"


def person(name: str) -> User | None:
    match name:
        case "nobody":
            return None
        case "superuser":
            return User.objects.create_superuser("root")
        case "dismissed":
            return User.objects.create_user("gone", is_active=False)
        case "outsider":
            return make_user("outsider", role=None)
        case "stranger":
            return make_user("stranger", role=Role.ADMIN, project=make_project("theirs"))
        case _:
            return make_user(name, role=Role(name), project=make_project("ours"))


HEARD = {
    "nobody": None,
    "dismissed": None,
    "outsider": set(),
    "stranger": {"theirs"},
    **{str(role): {"ours"} for role in Role},
    "superuser": {"ours", "theirs"},
}
"""Projects whose runs are named to them; None: their socket is closed at once."""


@pytest.mark.parametrize("name", HEARD)
def test_a_socket_names_only_runs_of_ones_own_projects(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "INTERVAL_S", 0.02)
    runs = {make_run(project=make_project(slug)).key: slug for slug in ("ours", "theirs")}
    page = Page(person(name))

    async def story() -> set[str] | None:
        await page.connect()
        if HEARD[name] is None:
            assert await page.closed_with() == consumers.FORBIDDEN
            return None
        await page.subscribe(*runs)
        wanted = HEARD[name] or set()
        heard = {runs[(await page.heard())["run"]] for _ in wanted}
        assert await page.receive_nothing(0.1), "a run too many was named"
        await page.leave()
        return heard

    assert asyncio.run(story()) == HEARD[name]
