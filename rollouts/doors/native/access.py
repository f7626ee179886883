"""Who may call what: a token's scopes, its run, and the role of the user behind it.

What a token opens is asked of `sql/open_run.sql` alone, by hot routes and by views; a session has its user's roles.
"""

from dataclasses import dataclass
from functools import lru_cache
from hmac import compare_digest
from typing import Any, NamedTuple, Protocol

import knox.auth
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.db.models import QuerySet
from django.http import HttpRequest, parse_cookie
from knox.crypto import hash_token
from knox.settings import CONSTANTS
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated
from rest_framework.request import Request

from rollouts import guesses
from rollouts.errors import Forbidden, Invalid, NotFound
from rollouts.models import ApiToken, Project, Role, Run, Scope
from rollouts.selectors import runs as run_selectors
from rollouts.sql import binary_cursor, load

ROLE_FOR = {
    Scope.READ: Role.VIEWER,
    Scope.CURATE: Role.CURATOR,
    Scope.LAUNCH: Role.OPERATOR,
    Scope.SUBMIT: Role.OPERATOR,
    Scope.PLAY: Role.OPERATOR,
    Scope.TRAIN: Role.OPERATOR,
}
"""What a person signed in by session needs for the same call."""
_MOST_NAMED = 20
"""Projects, in a refusal."""
TOKEN_MEMORY_S = 60.0
"""So long at most a large body under a token that was revoked is still read; nothing is done with it."""
_ROLES = {scope: [role.value for role in Role if role.includes(least)] for scope, least in ROLE_FOR.items()}
"""Every role that suffices."""


class Authenticated(Protocol):
    """Whose request it is, as DRF says it."""

    user: Any
    auth: Any


@dataclass
class Bearer:
    """A user by a token, without a request."""

    user: Any
    auth: Any


class TokenAuthentication(knox.auth.TokenAuthentication):
    """Knox', which asks for no token of an address from which too many opened nothing. Raises TooManyFailures."""

    def authenticate_credentials(self, token: bytes) -> tuple[User, ApiToken]:
        credential = token.decode("latin-1")
        guesses.check(self._address, credential)
        try:
            found: tuple[User, ApiToken] = super().authenticate_credentials(token)  # type: ignore[no-untyped-call]
        except AuthenticationFailed:
            guesses.failed(self._address)
            raise
        guesses.opened(credential)
        return found

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        self._address = request.META.get("REMOTE_ADDR") or ""
        found: tuple[User, ApiToken] | None = super().authenticate(request)  # type: ignore[no-untyped-call]
        return found


def authenticate(address: str, token: str) -> Bearer:
    """Whose token it is. Raises AuthenticationFailed and TooManyFailures."""
    authentication = TokenAuthentication()
    authentication._address = address
    return Bearer(*authentication.authenticate_credentials(token.encode("latin-1")))


def check_session(cookies: str) -> None:
    """Raise NotAuthenticated unless somebody is signed in with one of these cookies."""
    request = HttpRequest()
    request.session = SessionStore(parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME))
    if not get_user(request).is_authenticated:
        raise NotAuthenticated


def check_token(address: str, key: str, token: str, scope: Scope) -> None:
    """Raise what somebody hears who may not do this with the run.

    What was allowed within TOKEN_MEMORY_S passes without a query: whoever does it asks `opened` anew.
    """
    use = f"{token}\n{scope}\n{key}"  # no header holds a line break, so nobody can send this as a credential
    if guesses.is_known(use, for_s=TOKEN_MEMORY_S):
        return
    guesses.check(address, token)
    if opened(key, token, scope) is None:
        get_run(authenticate(address, token), key, scope)
    guesses.opened(token)
    guesses.opened(use)


class Opened(NamedTuple):
    """What a token opens."""

    run: Run
    """For what never changes of it: services read the rest anew."""
    actor: str
    """Who to name in events."""


def opened(key: str, token: str, scope: Scope) -> Opened | None:
    """The run ``key``, if ``token`` as it was sent may do this with it."""
    for digest, name, run_id in _openings(key, token[: CONSTANTS.TOKEN_KEY_LENGTH], scope):
        if compare_digest(digest, hash_token(token)):
            return Opened(_remembered(run_id), f"api:{name}")
    return None


def _openings(key: str, token_key: str, scope: Scope) -> list[tuple[str, str, int]]:
    """(digest, name of the token, id of the run) of the tokens that begin so and may do this with the run."""
    with binary_cursor() as cursor:
        cursor.execute(
            load("open_run"), {"run": key, "token_key": token_key, "scope": scope.value, "roles": _ROLES[scope]}
        )
        return cursor.fetchall()


@lru_cache(maxsize=256)
def _remembered(run_id: int) -> Run:
    return Run.objects.get(pk=run_id)


def get_run(request: Authenticated, key: str, scope: Scope) -> Run:
    """The run as it is now, if the caller may do this with it. Raises NotFound or Forbidden."""
    token = token_of(request)
    if token is None:
        return run_selectors.get(request.user, key, at_least=ROLE_FOR[scope])
    for digest, _, run_id in _openings(key, token.token_key, scope):
        if compare_digest(digest, token.digest):
            return run_selectors.with_relations(Run.objects.all()).get(pk=run_id)
    check_scope(request, scope)
    run_selectors.get(request.user, key, at_least=ROLE_FOR[scope])
    # The user may, the token may not: it is of another project, or bound to another run.
    raise NotFound(run_selectors.NO_RUN.format(key=key))


def list_runs(request: Request, scope: Scope) -> QuerySet[Run]:
    """The runs with which the caller may do this. Raises Forbidden."""
    check_scope(request, scope)
    runs = run_selectors.for_user(request.user, at_least=ROLE_FOR[scope])
    if (token := token_of(request)) is not None:
        runs = runs.filter(project=token.project_id)
        if token.run_id is not None:
            runs = runs.filter(pk=token.run_id)
    return runs


def get_project(request: Request, slug: str | None, scope: Scope) -> Project:
    """The named project, or the only one the caller may use. Raises NotFound, Forbidden, or Invalid where it is one of
    several."""
    check_scope(request, scope)
    projects = run_selectors.projects(request.user, at_least=ROLE_FOR[scope])
    token = token_of(request)
    if token is not None:
        if token.run_id is not None:
            raise Forbidden("This token is bound to one run.")
        projects = projects.filter(pk=token.project_id)
    if slug is not None:
        projects = projects.filter(slug=slug)
    found = list(projects.order_by("id")[:_MOST_NAMED])
    if not found:
        raise NotFound(f"There is no project {slug or ''} in which you may do this.")
    if len(found) > 1:
        named = ", ".join(project.slug for project in found)
        raise Invalid("Nothing was done.", fields={"project": f"is required: you may do this in several, {named}"})
    return found[0]


def check_scope(request: Authenticated, scope: Scope) -> None:
    """Raise Forbidden if a token without this scope is used."""
    token = token_of(request)
    if token is not None and scope not in token.scopes:
        raise Forbidden(f"This token lacks the scope {scope.value}.")


def token_of(request: Authenticated) -> ApiToken | None:
    return request.auth if isinstance(request.auth, ApiToken) else None


def actor_of(request: Request) -> str:
    """Who to name in events."""
    token = token_of(request)
    return f"api:{token.name}" if token is not None else f"user:{request.user.get_username()}"
