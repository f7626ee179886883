"""How many queries each page makes, pinned. Set ROLLYARD_UPDATE_SNAPSHOTS=1 to write the file anew, and look at it."""

import json
import os
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from rollouts.models import Dataset, DatasetForm, DatasetMember, DatasetVersion, Rollout, Run, Verb
from rollouts.services.curation import acts, labels
from rollouts.services.datasets import exports, making
from rollouts.states import GroupState
from tests.factories import make_batch, make_evaluation, make_event, make_group, make_lively_run, make_replica, somebody

PINNED = Path(__file__).parent.parent / "snapshots" / "query_counts.json"
PAGES = [
    "runs",
    "run",
    "run-live",
    "run-rollouts",
    "run-events",
    "run-config",
    "run-people",
    "group",
    "step",
    "launch",
    "models",
]
PAGES += ["environments", "environment", "datasets", "dataset", "dataset-version", "dataset-difference", "exports"]
PAGES += ["fleet", "run-cost"]


def fill(name: str) -> Run:
    """A run with several of everything, so that a query per row would show."""
    run = make_lively_run(steps=6, name=name)
    batched = [make_group(run, key=f"{name}-{number}") for number in range(3)]
    make_batch(run, 5, batched)
    for row in batched:
        labels.say(row, user=somebody(), actor="user:somebody", verdict="accept", rollout=0)
        done = acts.perform(run, Verb.EXCLUDE, [row.pk], user=somebody(), actor="user:somebody")
    acts.undo(done, user=somebody(), actor="user:somebody")
    for state in (GroupState.READY, GroupState.FILTERED, GroupState.STALE):
        make_group(run, state=state)
    make_version(run)
    exports.request(make_version(run), form="sft", user=None, actor="user:ada")
    make_evaluation(run, 99, 0.5)
    replica = make_replica(run)
    make_event(run, kind="replica", object_id=replica.pk, to="ready")
    make_event(run)
    return run


def make_version(run: Run) -> DatasetVersion:
    """A version with every rollout of a run, of the one dataset that there is."""
    rollouts = Rollout.objects.filter(group__run=run).order_by("id")

    def insert(version_id: int) -> None:
        DatasetMember.objects.bulk_create(
            DatasetMember(version_id=version_id, position=at, group_id=rollout.group_id, rollout=rollout)
            for at, rollout in enumerate(rollouts)
        )

    form, said = DatasetForm.EXAMPLES, {"actor": "user:somebody", "note": "", "licence": ""}
    return making.store(
        run.project, name="good", form=form, recipe={"runs": [run.key]}, parent=None, fill=insert, **said
    )


def path_of(page: str, run: Run) -> str:
    match page:
        case "runs":
            return "/"
        case "models" | "fleet":
            return reverse(page)
        case "exports":
            return reverse("exports")
        case "datasets":
            return reverse("datasets")
        case "dataset" | "dataset-difference":
            return reverse(page, args=[Dataset.objects.get().key])
        case "dataset-version":
            return reverse(page, args=[Dataset.objects.get().key, 1])
        case "environments":
            return reverse("environments")
        case "environment":
            return reverse("environment", args=["reverse_text"])
        case "launch":
            return f"{reverse('launch')}?preset=reverse-text-rl"
        case "run-live":
            return f"{reverse('run-live', args=[run.key])}?view=overview"
        case "group":
            return reverse("group", args=[run.key, f"{run.name}-0"])
        case "step":
            return reverse("step", args=[run.key, 5])
    return reverse(page, args=[run.key])


@pytest.mark.parametrize("page", PAGES)
def test_a_page_makes_the_pinned_number_of_queries(client: Client, page: str) -> None:
    run = fill("one")
    for name in ("two", "three", "four"):
        fill(name)
    path = path_of(page, run)
    with CaptureQueriesContext(connection) as queries:
        assert client.get(path).status_code == 200
    pinned = json.loads(PINNED.read_text()) if PINNED.exists() else {}
    if os.environ.get("ROLLYARD_UPDATE_SNAPSHOTS"):
        PINNED.write_text(json.dumps(pinned | {f"page {page}": len(queries)}, indent=2, sort_keys=True) + "\n")
        return
    listed = "\n".join(query["sql"][:160] for query in queries)
    assert len(queries) == pinned[f"page {page}"], f"{page} made:\n{listed}"
