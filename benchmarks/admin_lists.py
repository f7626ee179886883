"""How long the lists of the administration site take when there are a million groups.

    python -m benchmarks.admin_lists --groups 1000000

A store of its own is filled by SQL, groups of one rollout each, of which somebody rejects the oldest ten thousand.
Asked is for the first page of each list, and for the list of groups behind each of its filters, as a superuser and as
staff of one project, in this process. Prints a line of JSON for each, with the median of three times in milliseconds,
and the slowest at the end; the exit status is 0 if that is below a second.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import large_store

_STATES = ("trained", "trained", "trained", "ready", "stale", "filtered", "failed", "surplus")
_LABELLED = 10_000
_FILTERS = {
    "state__exact": (*sorted(set(_STATES)), "rejected"),
    "withheld__exact": ("", "rejected"),
    "purpose__exact": ("train", "evaluation"),
}
_TIMES = 3


def main() -> int:
    """Measure, and print a line of JSON for each page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin_lists")
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--home", type=Path, help="keep the store here")
    options = parser.parse_args()
    with large_store.opened(options.home):
        from django.core.management import call_command

        from rollouts.models import ScoredGroup

        call_command("collectstatic", verbosity=0, interactive=False)
        began = time.perf_counter()
        if not ScoredGroup.objects.exists():
            _fill(options.groups)
        print(json.dumps({"filled_s": round(time.perf_counter() - began, 1)}), flush=True)
        slowest = max(_ask(who, client, query) for who, client in _clients() for query in _pages())
    print(json.dumps({"slowest_ms": slowest}))
    return 0 if slowest < 1_000 else 1


def _fill(groups: int) -> None:
    run = large_store.create_run()
    large_store.fill(run, groups, size=1, states=_STATES)
    large_store.label(run.groups.order_by("pk").values_list("pk", flat=True)[:_LABELLED])
    large_store.analyze()


def _clients() -> list[tuple[str, Any]]:
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    from rollouts.models import Membership, Role
    from rollouts.services.runs import projects

    staff, _ = User.objects.get_or_create(username="staff", defaults={"is_staff": True})
    staff.user_permissions.set(Permission.objects.all())
    Membership.objects.get_or_create(user=staff, project=projects.ensure_default(), defaults={"role": Role.CURATOR})
    found = []
    for user in (projects.ensure_admin(), staff):
        client = Client(headers={"host": "localhost"})
        client.force_login(user)
        found.append((user.username, client))
    return found


def _pages() -> list[tuple[str, dict[str, str]]]:
    """List and query of each page."""
    from rollouts.admin import filters

    lists = ("run", "rollout", "label", "labelqueue", "dataset", "datasetversion", "export", "event", "grouptokens")
    pages: list[tuple[str, dict[str, str]]] = [(name, {}) for name in ("scoredgroup", *lists)]
    asked = {
        **_FILTERS,
        "reward": tuple(filters.RewardFilter.conditions),
        "signal": tuple(filters.SignalFilter.conditions),
        "errors": tuple(filters.ErrorFilter.conditions),
        "verdict": ("accept", "reject", "nothing"),
        "lag": ("0", "1", "2"),
        "environment": ("reverse_text", "none"),
        "q": ("p77777", "nothing"),
    }
    return pages + [("scoredgroup", {name: value}) for name, values in asked.items() for value in values]


def _ask(who: str, client: Any, page: tuple[str, dict[str, str]]) -> float:
    from django.urls import reverse

    name, query = page
    took = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        answer = client.get(reverse(f"admin:rollouts_{name}_changelist"), query)
        took.append(1000 * (time.perf_counter() - began))
    middle = round(sorted(took)[_TIMES // 2], 1)
    told = {"who": who, "list": name, **query, "status": answer.status_code, "ms": middle}
    print(json.dumps(told | {"first_ms": round(took[0], 1)}), flush=True)
    return middle


if __name__ == "__main__":
    sys.exit(main())
