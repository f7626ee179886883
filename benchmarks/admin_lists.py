"""How long the lists of the administration site take when there are a million groups.

    python -m benchmarks.admin_lists --groups 1000000

A store of its own is filled by SQL, groups of one rollout each: those that were trained are in batches, some are of an
evaluation, and somebody rejects the oldest ten thousand, with a word and an act. Asked is for the first page of each
list, and for the list of groups behind each of its filters, as a superuser and as staff of one project, in this
process. Prints how many rows there are and a line of JSON for each page, with the rows that it shows and the median of
three times in milliseconds, and the slowest at the end; the exit status is 0 if that is below a second. A page that
does not answer ends it.
"""

import argparse
import json
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

from benchmarks import large_store

_STATES = ("trained", "trained", "trained", "ready", "stale", "filtered", "failed", "surplus", "evaluated")
_REJECTED = 10_000
_LISTS = ("scoredgroup", "run", "rollout", "label", "labelqueue", "dataset", "datasetversion", "export", "event")
_LISTS += ("grouptokens", "batchitem")
_FILTERS = {
    "state__exact": (*sorted(set(_STATES)), "rejected"),
    "withheld__exact": ("", "rejected"),
    "purpose__exact": ("train", "eval"),
}
_TIMES = 3
_IN_BATCHES = """
INSERT INTO rollouts_batch (
    run_id, step, state, state_at, encoding, sha256, size_bytes, token_count, formed_at, delivered_at, deliveries,
    trained_at, epoch, reason_code, reason_params
)
SELECT %(run)s, step, 'trained', now(), 'msgpack', '', 0, 0, now(), now(), 1, now(), 1, '', '{}'
FROM generate_series(0, (SELECT max(min_policy_version) + 2 FROM rollouts_scoredgroup WHERE run_id = %(run)s)) AS step;

INSERT INTO rollouts_batchitem (batch_id, group_id, position, replay, advantages)
SELECT batch.id, scored.id, row_number() OVER (PARTITION BY batch.id ORDER BY scored.id), 0, '[0]'
FROM rollouts_scoredgroup AS scored
JOIN rollouts_batch AS batch ON batch.run_id = scored.run_id AND batch.step = scored.min_policy_version + scored.id %% 3
WHERE scored.run_id = %(run)s AND scored.state = 'trained'
"""
"""Trained groups are 0 to 2 steps behind their batch."""


def main() -> int:
    """Measure, and print a line of JSON for each page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin_lists")
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--home", type=Path, help="keep the store here")
    options = parser.parse_args()
    with large_store.opened(options.home):
        from django.apps import apps
        from django.core.management import call_command

        from rollouts.models import ScoredGroup

        call_command("collectstatic", verbosity=0, interactive=False)
        began = time.perf_counter()
        if not ScoredGroup.objects.exists():
            fill(options.groups)
        if (kept := ScoredGroup.objects.count()) != options.groups:
            raise SystemExit(f"{options.home} holds {kept} groups: say --groups {kept}, or name another --home")
        rows = {name: apps.get_model("rollouts", name).objects.count() for name in _LISTS}
        print(json.dumps({"filled_s": round(time.perf_counter() - began, 1), "rows": rows}), flush=True)
        slowest = max(ask(who, client, query) for who, client in clients() for query in pages())
    print(json.dumps({"slowest_ms": slowest}))
    return 0 if slowest < 1_000 else 1


def fill(groups: int, *, rejected: int = _REJECTED) -> None:
    from django.db import connection

    from rollouts.models import Verb
    from rollouts.services.curation import acts
    from rollouts.services.runs import projects

    run = large_store.create_run()
    large_store.fill(run, groups, size=1, states=_STATES)
    with connection.cursor() as cursor:
        for statement in _IN_BATCHES.split(";\n"):
            cursor.execute(statement, {"run": run.pk})
    oldest = list(run.groups.order_by("pk").values_list("pk", flat=True)[:rejected])
    large_store.label(oldest)
    acts.perform(run, Verb.REJECT, oldest, user=projects.ensure_admin(), actor="user:admin")
    large_store.analyze()


def clients() -> list[tuple[str, Any]]:
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


def pages() -> list[tuple[str, dict[str, str]]]:
    """List and query of each page."""
    from rollouts.admin import filters

    first: list[tuple[str, dict[str, str]]] = [(name, {}) for name in _LISTS]
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
    return first + [("scoredgroup", {name: value}) for name, values in asked.items() for value in values]


def ask(who: str, client: Any, page: tuple[str, dict[str, str]]) -> float:
    from django.urls import reverse

    name, query = page
    took = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        answer = client.get(reverse(f"admin:rollouts_{name}_changelist"), query)
        took.append(1000 * (time.perf_counter() - began))
        if answer.status_code != HTTPStatus.OK:
            raise SystemExit(f"the list {name} {query} answers {who} with {answer.status_code}")
    middle = round(sorted(took)[_TIMES // 2], 1)
    told = {"who": who, "list": name, **query, "rows": len(answer.context_data["cl"].result_list), "ms": middle}
    print(json.dumps(told | {"first_ms": round(took[0], 1)}), flush=True)
    return middle


if __name__ == "__main__":
    sys.exit(main())
