"""The door to the hot routes of the native API: submitting groups and fetching batches, with a token.

    POST /runs/<key>/groups, GET /runs/<key>/batches/<step>, with a token ─► the functions that the views call, too
    everything else, and whatever is not allowed ───────────────────────────► Django, which says why

The views of the same addresses serve people with a session, and describe the API.
"""

import re
from functools import partial

import msgspec
from rest_framework.exceptions import NotAuthenticated

from rollouts import guesses
from rollouts.doors.kernel import Route
from rollouts.doors.messages import Answer, Elsewhere, Later, Message, Request
from rollouts.doors.native import access, groups, problems, trainer
from rollouts.errors import Forbidden
from rollouts.models import Scope
from trainers.wire import EPOCH_HEADER

API = "/api/"
PATH = re.compile(r"/api/v1/runs/(?P<key>[-\w]{1,16})/(?:(?P<groups>groups)|batches/(?P<step>\d{1,9}))")
_EPOCH = EPOCH_HEADER.lower().encode()


class NativeDoor:
    """A `kernel.Door` in front of Django."""

    def route(self, request: Request) -> Route:
        """One of the two routes. Raises Elsewhere for all others, and for whoever has no token."""
        found = PATH.fullmatch(request.path)
        kind, _, token = request.header(b"authorization").partition(" ")
        if found is None or kind.lower() != "token":
            raise Elsewhere
        if found["groups"] and request.method == "POST":
            opened = partial(_opened, request.address, found["key"], token, Scope.SUBMIT)
            reason = partial(access.check_token, request.address, found["key"], token, Scope.SUBMIT)
            return Route(lambda _: reason(), lambda request: _submit(opened(), request))
        if found["step"] and request.method == "GET":
            opened = partial(_opened, request.address, found["key"], token, Scope.TRAIN)
            reason = partial(access.check_token, request.address, found["key"], token, Scope.TRAIN)
            return Route(lambda _: reason(), lambda request: _fetch(opened(), request, int(found["step"])))
        raise Elsewhere

    def check_elsewhere(self, request: Request) -> None:
        """Raise what is wrong with the token, NotAuthenticated or, of a page, Forbidden, unless a token or a session
        opens anything."""
        kind, _, token = request.header(b"authorization").partition(" ")
        if kind.lower() == "token":
            access.authenticate(request.address, token)
            return
        try:
            access.check_session(request.header(b"cookie"))
        except NotAuthenticated:
            if request.path.startswith(API):
                raise
            sentence = "Nothing was stored: your session had ended. Sign in elsewhere, and send this again."
            raise Forbidden(sentence) from None

    def refusal(self, error: Exception, request: Request) -> Answer:
        """The problem that an error is; of a page its sentence, for somebody reads it. Raises the error if it is one of
        ours."""
        described = problems.describe(error)
        if described is None:
            raise error
        status, headers, body = described
        if not request.path.startswith(API):
            return Answer(f"{body['detail']}\n".encode(), status, "text/plain; charset=utf-8", headers)
        return Answer(msgspec.json.encode(body), status, problems.PROBLEM_JSON, headers)

    def begin(self, answer: Answer, request: Request) -> tuple[Message, bytes]:
        """The first message of an answer, and its body as it is."""
        named = {"content-type": answer.content_type} if answer.content_type else {}
        named |= answer.headers | {"content-length": str(len(answer.body))}
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in named.items()]
        return {"type": "http.response.start", "status": answer.status, "headers": headers}, answer.body


def _opened(address: str, key: str, token: str, scope: Scope) -> access.Opened:
    """What the token opens. Raises Elsewhere when that is not the run: Django finds out why not."""
    guesses.check(address, token)
    if (opened := access.opened(key, token, scope)) is None:
        raise Elsewhere
    guesses.opened(token)
    return opened


def _submit(opened: access.Opened, request: Request) -> Answer:
    idempotency_key = request.header(b"idempotency-key") if b"idempotency-key" in request.headers else None
    content_type = request.header(b"content-type")
    return groups.submit(opened.run, content_type, request.body, idempotency_key, actor=opened.actor)


def _fetch(opened: access.Opened, request: Request, step: int) -> Later:
    return trainer.fetch(opened.run, step, epoch=request.header(_EPOCH), query=request.query)
