"""The pages of one run: overview, rollouts, events, config; and its stop button.

`overview` and `live` show the same regions from the same context: the page whole, then only the parts that follow the
run, which htmx morphs into place. Charts are no part of it: they fetch their own points.
"""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from frontend import query
from frontend.access import actor, may_operate, page
from frontend.pages.run.config import config_table
from frontend.pages.run.cost import spending
from frontend.pages.run.overview import charts, environments, ledger
from frontend.pages.run.overview.tiles import of_run as tiles_of
from frontend.pages.run.people import curated
from frontend.pages.run.rollouts import rollouts as rollout_lines
from rollouts.errors import Conflict, Invalid, NotFound
from rollouts.models import Role, Run, RunKind
from rollouts.models.address import DEFAULT_DAYS, MOST_DAYS
from rollouts.selectors import costs, exports, pages, runs, sessions
from rollouts.selectors.environments import FRESH_S, NEWEST_GROUPS
from rollouts.services.runs import addresses, life
from rollouts.states import GroupState

OVERVIEW_GROUPS = 4
GROUPS_PER_PAGE = 20
EVENTS_PER_PAGE = 100
STOP_DEADLINE_S = 30
"""What the stop dialog promises: after this long the reconciler kills what has not ended."""


@page
@require_safe
def overview(request: HttpRequest, key: str) -> HttpResponse:
    """Everything that says whether the run is well."""
    run = runs.get(request.user, key)
    context = head(request, run, tab="overview") | _body(run)
    context["charts"] = charts.of_run(run, context["environments"])
    return render(request, "run/overview/overview.html", context)


@page
@require_safe
def live(request: HttpRequest, key: str) -> HttpResponse:
    """The regions of a run page that changed, for htmx. `view` names the page that asks."""
    try:
        run = runs.get(request.user, key)
    except NotFound:
        if not getattr(request, "htmx", False):
            raise
        # No 404: a browser would report it as an error of the page, which only asked whether anything changed.
        whole_page = {"HX-Retarget": "#main", "HX-Reswap": "innerHTML", "HX-Trigger": "live:ended"}
        return HttpResponse(render_to_string("run/gone.html"), headers=whole_page)
    view = request.GET.get("view", "")
    context: dict[str, Any] = {"run": run, "oob": True, "view": view, "now": timezone.now()} | _status(run)
    if view == "overview":
        context |= _body(run)
    elif view == "rollouts":
        context |= _rollouts(request, run)
    elif view == "events":
        context |= _events(request, run)
    elif view == "people":
        context |= curated.of_run(request, run)
    elif view == "cost":
        context |= _cost(run)
    elif view == "connect" and may_operate(request, run):
        context |= _connected(run)
    return render(request, "run/live.html", context)


@page
@require_safe
def rollouts(request: HttpRequest, key: str) -> HttpResponse:
    """Groups and their rollouts, newest first, filtered by state or purpose."""
    run = runs.get(request.user, key)
    context = head(request, run, tab="rollouts") | _rollouts(request, run)
    return render(request, "run/rollouts/rollouts.html", context)


@page
@require_safe
def events(request: HttpRequest, key: str) -> HttpResponse:
    """What changed state, when, by whom and why."""
    run = runs.get(request.user, key)
    context = head(request, run, tab="events") | _events(request, run)
    return render(request, "run/events/events.html", context)


@page
@require_safe
def config(request: HttpRequest, key: str) -> HttpResponse:
    """The resolved config, with where each value came from."""
    run = runs.get(request.user, key)
    context = head(request, run, tab="config") | {"sections": config_table.sections(run)}
    return render(request, "run/config/config.html", context)


@page
@require_safe
def cost(request: HttpRequest, key: str) -> HttpResponse:
    """What the run has cost, by what became of it."""
    run = runs.get(request.user, key)
    return render(request, "run/cost/cost.html", head(request, run, tab="cost") | _cost(run))


@page
@require_safe
def connect(request: HttpRequest, key: str) -> HttpResponse:
    """How environments and trainers from outside reach the run, and which do. Shows a credential: operators only."""
    run = runs.get(request.user, key, Role.OPERATOR)
    if (address := runs.address(run)) is None:
        raise NotFound("Nothing from outside takes part in a supervised run.")
    context = head(request, run, tab="connect") | _connected(run)
    context |= {
        "url": settings.ROLLYARD_URL,
        "api_url": f"{settings.ROLLYARD_URL}/api/v1/runs/{run.key}",
        "has_gateway": bool(settings.ROLLYARD_GATEWAY_URL),
        "address": address,
        "default_days": DEFAULT_DAYS,
        "most_days": MOST_DAYS,
    }
    return render(request, "run/connect/connect.html", context)


@page
@require_POST
def rotate_key(request: HttpRequest, key: str) -> HttpResponse:
    """Give the Atropos-compatible API of the run another address. Needs the operator role."""
    run = runs.get(request.user, key, Role.OPERATOR)
    try:
        is_for_old_clients = request.POST.get("resets_on_get") == "on"
        addresses.change(run, **_held(request), resets_on_get=is_for_old_clients)
    except Invalid as error:
        messages.error(request, error.message)
    else:
        messages.success(request, "The address was changed: give the new one to environments and trainers.")
    return HttpResponseRedirect(reverse("run-connect", args=[run.key]))


@page
@require_POST
def renew_address(request: HttpRequest, key: str) -> HttpResponse:
    """Let the address open the run for longer, in the name of whoever asks. Needs the operator role."""
    run = runs.get(request.user, key, Role.OPERATOR)
    try:
        addresses.renew(run, **_held(request))
    except Invalid as error:
        messages.error(request, error.message)
    else:
        messages.success(request, "The address was renewed, and is yours.")
    return HttpResponseRedirect(reverse("run-connect", args=[run.key]))


@page
@require_POST
def stop(request: HttpRequest, key: str) -> HttpResponse:
    """Ask the run to end. Needs the operator role."""
    run = runs.get(request.user, key, Role.OPERATOR)
    try:
        life.request_stop(run, actor=actor(request))
    except Conflict as error:
        messages.error(request, error.message)
    return HttpResponseRedirect(reverse("run", args=[run.key]))


def _held(request: HttpRequest) -> dict[str, Any]:
    """By whom, and for how long, an address is to be held. Raises Invalid."""
    days = request.POST.get("days", "") or str(DEFAULT_DAYS)
    if not (days.isascii() and days.isdigit() and len(days) <= 4):
        raise Invalid(f"An address lasts 1 to {MOST_DAYS} days.")
    return {"owner": request.user, "actor": actor(request), "days": int(days)}


def head(request: HttpRequest, run: Run, *, tab: str) -> dict[str, Any]:
    """What the frame of every page of a run shows."""
    return {
        "run": run,
        "view": tab,
        "live_runs": run.key,
        "environments": [environment.name for environment in run.environments.all()],
        "learned": list(exports.learned_of(run)) if run.kind == RunKind.SFT else [],
        "may_operate": may_operate(request, run),
        "stop_deadline_s": STOP_DEADLINE_S,
        "now": timezone.now(),
    } | _status(run)


def _status(run: Run) -> dict[str, Any]:
    return {"health": runs.health(run), "progress": pages.progress(run), "seq": pages.seq(run)}


def _body(run: Run) -> dict[str, Any]:
    trains_groups = run.kind in {RunKind.RL, RunKind.EXTERNAL}
    return {
        "tiles": tiles_of(run, pages.list_evaluations(run)),
        "in_flight": environments.in_flight(run),
        "fresh_s": FRESH_S,
        "ledger": ledger.of_lines(runs.ledger(run)) if trains_groups else None,
        "played": environments.of_run(run),
        "newest_groups": NEWEST_GROUPS,
        "groups": [
            rollout_lines.of_group(group)
            for group in pages.list_groups(run, limit=OVERVIEW_GROUPS, purpose="train" if trains_groups else "")
        ],
        "replicas": pages.list_replicas(run),
        "placements": pages.list_placements(run),
        "events": pages.list_events(run, limit=8),
    }


def _rollouts(request: HttpRequest, run: Run) -> dict[str, Any]:
    state, purpose = request.GET.get("state", ""), request.GET.get("purpose", "")
    before = query.number(request, "before")
    found = list(
        pages.list_groups(
            run,
            limit=GROUPS_PER_PAGE + 1,
            before=before,
            state=state if state in GroupState.values else "",
            purpose=purpose if purpose in {"train", "eval"} else "",
        )
    )
    shown = found[:GROUPS_PER_PAGE]
    return {
        "groups": [rollout_lines.of_group(group) for group in shown],
        "older": shown[-1].pk if len(found) > GROUPS_PER_PAGE else None,
        "is_first_page": before is None,
        "state": state,
        "purpose": purpose,
        "ledger": ledger.of_lines(runs.ledger(run)),
    }


def _cost(run: Run) -> dict[str, Any]:
    return {"cost": spending.of_cost(costs.of_run(run))}


def _connected(run: Run) -> dict[str, Any]:
    """Who takes part from outside now: without the address, which nothing that is fetched again and again shows."""
    return {
        "sessions": sessions.count(run),
        "attempt": pages.open_attempt(run),
        "clients": pages.list_clients(run),
    }


def _events(request: HttpRequest, run: Run) -> dict[str, Any]:
    before = query.number(request, "before")
    found = list(pages.list_events(run, limit=EVENTS_PER_PAGE + 1, before=before))
    shown = found[:EVENTS_PER_PAGE]
    return {
        "events": shown,
        "older": shown[-1].event.pk if len(found) > EVENTS_PER_PAGE else None,
        "is_first_page": before is None,
    }
