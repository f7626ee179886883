"""Launch, list, show and stop runs; read their metrics and events."""

import re
from dataclasses import asdict
from typing import Any, cast

import msgspec
from django.contrib.auth.models import User
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from rollouts.doors.native import wire
from rollouts.doors.native.access import actor_of, get_project, get_run, list_runs
from rollouts.errors import Invalid
from rollouts.models import Event, Run, Scope
from rollouts.selectors import costs
from rollouts.selectors import events as event_selectors
from rollouts.selectors import metrics as metric_selectors
from rollouts.selectors import runs as run_selectors
from rollouts.services.runs import forks, launches, life
from trainers.config import resolve
from trainers.origins import REQUEST

PAGE = 100
EVENTS = 200
KEYS = 200
"""Of metrics in one answer."""


class LaunchIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to launch: a shipped preset, values of your own, single values on top. Later wins."""

    preset: str | None = None
    config: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    """Dotted key -> value."""
    project: str | None = None
    fork_from: str | None = None
    """RUN or RUN@STEP: start from the weights of this checkpoint instead of `model.path`."""
    fork_optimizer: bool = False
    """Take the checkpoint's optimizer state too."""


class StopIn(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = ""


class RunOut(msgspec.Struct, kw_only=True):
    """A run as lists show it."""

    run: str
    project: str
    kind: str
    name: str
    state: str
    reason: str
    """A sentence for people; empty when there is none."""
    reason_code: str
    """Stable: decide on this."""
    step: int
    """Acknowledged steps."""
    max_steps: int
    live_version: int
    epoch: int
    created_at: str
    started_at: str | None
    finished_at: str | None


class RunDetailOut(RunOut, kw_only=True):
    """A run with what one asks of a single one."""

    health: str
    forked_from: str | None
    """RUN@STEP whose weights are policy version 0."""
    model: str | None
    """Name of the registered model that it starts from."""
    ledger: list[dict[str, Any]]
    config: dict[str, Any]
    origins: dict[str, str]


class RunsOut(msgspec.Struct):
    runs: list[RunOut]
    next_before: int | None
    """Pass as ``before`` for the next page; null on the last."""


class RunsApi(APIView):
    """`/runs`"""

    parser_classes = [wire.RawParser]

    @extend_schema(
        operation_id="listRuns",
        parameters=[OpenApiParameter("before", int, description="Runs older than this cursor.")],
        responses=wire.answer(RunsOut),
    )
    def get(self, request: Request) -> Response:
        """Newest runs first, 100 a page."""
        runs = list_runs(request, Scope.READ).select_related("project").order_by("-id")
        if (before := integer(request, "before")) is not None:
            runs = runs.filter(pk__lt=before)
        page = list(runs[:PAGE])
        out = RunsOut(runs=[RunOut(**_fields(run)) for run in page], next_before=None)
        if len(page) == PAGE:
            out.next_before = page[-1].pk
        return Response(wire.json(out))

    @extend_schema(
        operation_id="launchRun",
        request=wire.body(LaunchIn),
        responses={(201, "application/json"): wire.schema_of(RunOut)},
    )
    def post(self, request: Request) -> Response:
        """Launch a run. The config is resolved and checked at once; the processes start within seconds.

        A model that would not load is refused at `model.path`; `model_missing` says that a preset makes it.
        """
        launch = wire.decode(request, LaunchIn)
        project = get_project(request, launch.project, Scope.LAUNCH)
        fork = None
        if launch.fork_from is not None:
            key, step = forks.parse(launch.fork_from)
            source = get_run(request, key, Scope.LAUNCH)
            fork = forks.plan(source, step=step, with_optimizer=launch.fork_optimizer)
        overrides = launch.overrides | (fork.overrides if fork else {})
        resolved = resolve(launch.preset, inline=launch.config, overrides=overrides, overrides_from=REQUEST)
        run = launches.launch(
            project=project,
            user=cast(User, request.user),
            resolved=resolved,
            actor=actor_of(request),
            forkable=list_runs(request, Scope.LAUNCH),
            fork=fork,
            fork_optimizer=launch.fork_optimizer,
        )
        run.refresh_from_db()
        return Response(wire.json(RunOut(**_fields(run))), status=201)


class RunApi(APIView):
    """`/runs/<key>`"""

    @extend_schema(operation_id="showRun", responses=wire.answer(RunDetailOut))
    def get(self, request: Request, key: str) -> Response:
        """One run, its health, its ledger and its config."""
        run = get_run(request, key, Scope.READ)
        detail = RunDetailOut(
            **_fields(run),
            health=run_selectors.health(run).sentence,
            forked_from=forks.name_of(run.forked_from) if run.forked_from else None,
            model=run.model.name if run.model else None,
            ledger=[
                {
                    "state": line.state,
                    "reason": line.heading,
                    "reason_code": str(line.reason.code) if line.reason else "",
                    "groups": line.groups,
                    "rollouts": line.rollouts,
                }
                for line in run_selectors.ledger(run)
            ],
            config=run.config,
            origins={key: str(origin) for key, origin in run.origins.items()},
        )
        return Response(wire.json(detail))


class StopApi(APIView):
    """`/runs/<key>/stop`"""

    parser_classes = [wire.RawParser]

    @extend_schema(operation_id="stopRun", request=wire.body(StopIn), responses=wire.answer(RunOut))
    def post(self, request: Request, key: str) -> Response:
        """End a run now. Its groups, metrics and checkpoints stay. Stopping twice is stopping once."""
        run = get_run(request, key, Scope.LAUNCH)
        stop = wire.decode(request, StopIn)
        run = life.request_stop(run, actor=actor_of(request), reason=stop.reason)
        return Response(wire.json(RunOut(**_fields(run))))


def _parted(names: str) -> list[str]:
    """Metric keys of a query: of environments whose names have commas too."""
    return [name.replace(r"\,", ",") for name in re.split(r"(?<!\\),", names) if name]


class MetricsApi(APIView):
    """`/runs/<key>/metrics`"""

    @extend_schema(
        operation_id="readMetrics",
        parameters=[
            OpenApiParameter(
                "keys",
                str,
                description="Comma-separated metric keys, a comma in one as `\\,`; all when left out.",
            ),
            OpenApiParameter("points", int, description="At most so many points per series (1500)."),
            OpenApiParameter("after_step", int, description="Only steps after this one."),
        ],
        responses={(200, "application/json"): {"type": "object", "additionalProperties": True}},
    )
    def get(self, request: Request, key: str) -> Response:
        """Series as [last step, mean, minimum, maximum, first step], in buckets, of which each has at most ``points``.
        Of very many metrics `left_out` has the keys of those that have to be asked for in another request."""
        run = get_run(request, key, Scope.READ)
        names = request.query_params.get("keys")
        keys = _parted(names) if names else metric_selectors.list_keys(run)
        points = integer(request, "points")
        after_step = integer(request, "after_step")
        series = metric_selectors.series(
            run,
            keys[:KEYS],
            points=metric_selectors.MAX_POINTS if points is None else points,
            after_step=-1 if after_step is None else after_step,
        )
        return Response({"series": series, "left_out": keys[KEYS:]})


class SpentOut(msgspec.Struct, kw_only=True):
    """Whole seconds of GPUs and of cores."""

    gpu_s: int
    core_s: int


class CostOut(msgspec.Struct, kw_only=True):
    """What a run has cost; its parts add up to the total."""

    run: str
    is_final: bool
    """Whether the run is over, and no replica of it is left."""
    total: SpentOut
    spent: dict[str, SpentOut]
    """By what became of it: `trained`, `evaluated`, `waiting`, `stale`, `filtered`, `failed`, `rejected`, `surplus`,
    `idle`, `starting`."""
    replicas: int
    unmeasured: int
    """Those of them of which nobody noted what they computed on: they count as nothing."""


class CostApi(APIView):
    """`/runs/<key>/cost`"""

    @extend_schema(operation_id="readCost", responses=wire.answer(CostOut))
    def get(self, request: Request, key: str) -> Response:
        """For how many seconds replicas of the run had GPUs and cores, by what became of them."""
        run = get_run(request, key, Scope.READ)
        cost = costs.of_run(run)
        out = CostOut(
            run=run.key,
            is_final=cost.is_final,
            total=SpentOut(**asdict(cost.total)),
            spent={became.value: SpentOut(**asdict(seconds)) for became, seconds in cost.spent.items()},
            replicas=cost.replicas,
            unmeasured=cost.unmeasured,
        )
        return Response(wire.json(out))


class EventsApi(APIView):
    """`/runs/<key>/events`"""

    @extend_schema(
        operation_id="readEvents",
        parameters=[OpenApiParameter("after_seq", int, description="The oldest 200 behind this number, oldest first.")],
        responses={(200, "application/json"): {"type": "object", "additionalProperties": True}},
    )
    def get(self, request: Request, key: str) -> Response:
        """The newest 200 events, newest first; `kind` is `created`, `changed` (its state) or `noted` (no change).

        With `after_seq` the oldest 200 behind it, oldest first: ask again behind the last of them until none is left.
        Of two changes at the same moment the one with the larger number may be seen first: to miss none, begin the
        next question a little before the newest number you have.
        """
        run = get_run(request, key, Scope.READ)
        seq = integer(request, "after_seq")
        if seq is None:
            events = event_selectors.list_recent(run, limit=EVENTS)
        else:
            events = event_selectors.list_after(run, seq, limit=EVENTS)
        return Response({"events": [_event(event) for event in events]})


def integer(request: Request, name: str) -> int | None:
    """A query parameter as an integer that fits the database; None when absent. Raises Invalid."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) <= 18):
        raise Invalid(f"The query parameter {name} must be an integer.", fields={name: "must be an integer"})
    return int(text)


def _fields(run: Run) -> dict[str, Any]:
    return {
        "run": run.key,
        "project": run.project.slug,
        "kind": run.kind,
        "name": run.name,
        "state": run.state,
        "reason": run.state_reason,
        "reason_code": run.reason_code,
        "step": run.next_step,
        "max_steps": run.max_steps,
        "live_version": run.live_version,
        "epoch": run.epoch,
        "created_at": run.created_at.isoformat(),
        "started_at": run.started_at.isoformat() if run.started_at else None,
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "seq": event.pk,
        "at": event.at,
        "kind": event.kind,
        "object_kind": event.object_kind,
        "object_id": event.object_id,
        "from_state": event.from_state,
        "to_state": event.to_state,
        "reason": str(event.reason or ""),
        "reason_code": event.reason_code,
        "reason_params": event.reason_params,
        "actor": event.actor,
    }
