"""Open sessions, through which programs play the live policy; they are played and finished at the gateway."""

from typing import Annotated

import msgspec
from django.conf import settings
from django.contrib.auth.models import User
from drf_spectacular.utils import extend_schema
from msgspec import Meta
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from environments import registry
from environments.errors import RegistryError
from environments.types import JsonObject, Message, Problem, Split
from rollouts.doors.messages import JSON
from rollouts.doors.native import wire
from rollouts.doors.native.access import actor_of, get_run
from rollouts.errors import Conflict, Invalid
from rollouts.models import AgentSession, Run, Scope
from rollouts.services.outside import sessions

DEFAULT_DEADLINE_S = 3600.0
MOST_DEADLINE_S = 86_400.0


class OpenSessionIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A problem of one's own, or by its number one of an environment of the run that Rollyard ships."""

    problem: Problem | None = None
    environment: str = "agent"
    """Under which name the rollout is stored; with `index`, which environment poses the problem."""
    environment_version: str = ""
    index: Annotated[int, Meta(ge=0)] | None = None
    """Number of a problem of the environment, in place of `problem`; it goes round."""
    group: str | None = None
    """Sessions with the same are scored against each other, and have the same problem; null: this one is alone, and
    trains nothing where the run's advantage compares rollouts."""
    group_size: Annotated[int, Meta(ge=1)] | None = None
    """How many sessions close the group; by default the run's, or one without a group."""
    deadline_s: Annotated[float, Meta(ge=1, le=MOST_DEADLINE_S)] = DEFAULT_DEADLINE_S
    """Not finished within so many seconds, the session has failed."""


class SessionProblemOut(msgspec.Struct):
    """What is played. Data that only scoring needs is not told."""

    key: str
    messages: list[Message]
    tools: list[JsonObject]


class OpenSessionOut(msgspec.Struct):
    """Where the session is played. The key is told once."""

    session: str
    group: str
    group_size: int
    problem: SessionProblemOut
    base_url: str
    """For OPENAI_BASE_URL."""
    api_key: str
    """For OPENAI_API_KEY."""
    finish_url: str
    """`POST {"reward": 1.0, "metrics": {}}`, or `{"error": "..."}`, when the episode is over."""
    expires_at: str


class SessionsApi(APIView):
    """`/runs/<key>/sessions`"""

    @extend_schema(
        operation_id="openSession",
        request=wire.body(OpenSessionIn),
        responses={(201, JSON): wire.schema_of(OpenSessionOut)},
    )
    def post(self, request: Request, key: str) -> Response:
        """Open a session: an address through which a program plays one episode against the live policy."""
        run = get_run(request, key, Scope.PLAY)
        assert isinstance(request.user, User), "nobody else gets as far as this"
        asked = wire.decode(request, OpenSessionIn)
        if not settings.ROLLYARD_GATEWAY_URL:
            raise Conflict("No gateway runs here. Start one with `manage.py gateway`, and set ROLLYARD_GATEWAY_URL.")
        problem = _problem(run, asked)
        size = asked.group_size or (run.parsed.sampling_of(asked.environment).group_size if asked.group else 1)
        opened = sessions.open_session(
            run,
            problem,
            environment=asked.environment,
            environment_version=asked.environment_version,
            group=asked.group,
            group_size=size,
            deadline_s=asked.deadline_s,
            owner=request.user,
            actor=actor_of(request),
        )
        return Response(wire.json(_told(opened.row, opened.key, problem)), status=201)


def _problem(run: Run, asked: OpenSessionIn) -> Problem:
    if (asked.problem is None) == (asked.index is None):
        raise Invalid(fields={"problem": "give a problem, or the index of one of the environment's"})
    if asked.problem is not None:
        return asked.problem
    known = {each.run_name: each for each in run.parsed.environments}
    if asked.environment not in known:
        raise Invalid(fields={"environment": f"is none of the run's: {', '.join(known) or 'it has none'}"})
    ref = known[asked.environment]
    if not registry.is_ours_alone(ref.name, ref.args) or ref.python:
        why = "has code or files from elsewhere, which belong in its own process only: send the problem itself"
        raise Invalid(fields={"environment": why})
    try:
        environment = registry.load(ref.name, ref.args)
    except RegistryError as error:
        raise Invalid(fields={"environment": str(error)}) from None
    assert asked.index is not None
    return environment.problem(Split.TRAIN, asked.index % environment.count(Split.TRAIN))


def _told(row: AgentSession, key: str, problem: Problem) -> OpenSessionOut:
    root = f"{settings.ROLLYARD_GATEWAY_URL}/s/{key}"
    return OpenSessionOut(
        session=str(row.name),
        group=row.group_key,
        group_size=row.group_size,
        problem=SessionProblemOut(problem.key, problem.messages, problem.tools),
        base_url=f"{root}/v1",
        api_key=key,
        finish_url=f"{root}/finish",
        expires_at=row.expires_at.isoformat(),
    )
