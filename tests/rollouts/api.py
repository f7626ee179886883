"""A client of the REST API for tests: a token, JSON in and out."""

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from rollouts.models import Project, Role, Run, Scope
from rollouts.services.runs import tokens
from tests.factories import make_project, make_user

ALL = list(Scope)


class Api:
    """Speaks to `/api/v1/` with a token, or with none."""

    def __init__(self, token: str | None = None, *, epoch: int | None = None) -> None:
        self.client = Client(raise_request_exception=True)
        self.headers = {"Authorization": f"Token {token}"} if token else {}
        if epoch is not None:
            self.headers["Rollyard-Epoch"] = str(epoch)

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(f"/api/v1/{path}", headers=self.headers | headers)

    def post(self, path: str, body: Any = None, *, content_type: str = "application/json", **headers: str) -> Any:
        data = body if isinstance(body, bytes) else msgspec.json.encode({} if body is None else body)
        return self.client.post(f"/api/v1/{path}", data=data, content_type=content_type, headers=self.headers | headers)


def make_token(
    scopes: Iterable[Scope] = ALL,
    *,
    user: User | None = None,
    project: Project | None = None,
    run: Run | None = None,
    role: Role = Role.OPERATOR,
    ttl: timedelta = timedelta(hours=1),
) -> str:
    """A token of an operator of the default project of the tests, unless said otherwise."""
    project = project or make_project()
    user = (
        user
        or User.objects.filter(username=f"{role}-{project}").first()
        or make_user(f"{role}-{project}", role=role, project=project)
    )
    return tokens.create(user=user, project=project, name="test", scopes=scopes, ttl=ttl, run=run)


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """The body of a refusal, which must be a problem of this status and code."""
    body = json.loads(response.content)
    assert (response.status_code, body["code"]) == (status, code), body
    assert response.headers["Content-Type"] == "application/problem+json"
    assert body["status"] == status
    assert body["detail"]
    assert body["type"] == f"urn:rollyard:problem:{code}"
    return body


def row_counts() -> dict[str, int]:
    """Rows per table of the store: what a refused request must not change.

    Prepared once for a connection: to plan for fifty tables takes four times as long as to count their rows.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_prepared_statements WHERE name = 'row_counts'")
        if cursor.fetchone() is None:
            cursor.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'rollouts_%' ORDER BY 1")
            counts = (f"SELECT '{name}', count(*) FROM {name}" for (name,) in cursor.fetchall())
            cursor.execute("PREPARE row_counts AS " + " UNION ALL ".join(counts))
        cursor.execute("EXECUTE row_counts")
        return dict(cursor.fetchall())
