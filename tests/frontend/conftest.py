"""People who look at pages: an operator, a viewer of the same project, and a stranger."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Role
from tests.factories import make_project, make_user


@pytest.fixture(autouse=True)
def _database(db: None) -> None:
    """Every page reads the database."""


@pytest.fixture
def operator() -> User:
    return make_user("ada", role=Role.OPERATOR)


@pytest.fixture
def client(operator: User) -> Client:
    """Signed in as an operator of the project `words`."""
    return signed_in(operator)


@pytest.fixture
def viewer_client() -> Client:
    return signed_in(make_user("vera", role=Role.VIEWER))


@pytest.fixture
def stranger_client() -> Client:
    return signed_in(make_user("sam", role=Role.ADMIN, project=make_project("elsewhere")))


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
