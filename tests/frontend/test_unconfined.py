"""Where sandboxes are switched off every page says so, whoever looks at it."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from environments.unconfined import VARIABLE
from frontend.pages.models import views
from tests.factories import make_user

NOTICE = f"Code of runs is not confined here (<code>{VARIABLE}=1</code>)"
Ask = Callable[[Client], str]


def page(path: str, status: int = 200) -> Ask:
    def ask(client: Client) -> str:
        answer = client.get(path)
        assert answer.status_code == status
        return answer.text

    return ask


def bad_host(client: Client) -> str:
    answer = client.get("/", headers={"Host": "elsewhere.example"})
    assert answer.status_code == 400
    return answer.text


def foreign_form(_client: Client) -> str:
    answer = Client(enforce_csrf_checks=True).post("/login/", {})
    assert answer.status_code == 403
    return answer.text


EVERYBODYS = [page("/login/"), bad_host, foreign_form]
MEMBERS = [page("/"), page("/nothing/here/", 404), page("/trust/", 403), page("/api/v1/docs")]


@pytest.mark.parametrize("ask", EVERYBODYS)
def test_pages_for_everybody_say_so(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NOTICE not in ask(Client())
    monkeypatch.setenv(VARIABLE, "1")
    assert NOTICE in ask(Client())


@pytest.mark.parametrize("ask", MEMBERS)
def test_pages_for_members_say_so(ask: Ask, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NOTICE not in ask(client)
    monkeypatch.setenv(VARIABLE, "1")
    assert NOTICE in ask(client)


@pytest.mark.parametrize("path", ["/admin/", "/admin/auth/user/", "/admin/auth/user/add/?_popup=1"])
def test_administration_says_so(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_user("root")
    User.objects.filter(username="root").update(is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(User.objects.get(username="root"))
    assert NOTICE not in page(path)(client)
    monkeypatch.setenv(VARIABLE, "1")
    assert NOTICE in page(path)(client)


def test_so_does_the_page_of_an_error_of_ours(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    client.raise_request_exception = False
    monkeypatch.setattr(views, "render", broken)
    assert NOTICE not in page("/models/", 500)(client)
    monkeypatch.setenv(VARIABLE, "1")
    assert NOTICE in page("/models/", 500)(client)
