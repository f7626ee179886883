"""What axe finds on the pages of curation and on the administration site, in both themes: nothing serious."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts.models import ScoredGroup, Verb
from rollouts.services.curation import acts, labels, queues, turns
from rollouts.services.datasets import making
from rollouts.services.datasets.choosing import Recipe
from tests import store
from tests.browser.watched import Watched
from tests.factories import make_batch, make_group, make_lively_run, somebody
from tests.rollouts import story

pytestmark = pytest.mark.browser

AXE = Path(__file__).parents[2] / "frontend/node_modules/axe-core/axe.min.js"
GRAVE = {"serious", "critical"}
RUN = "axe.run(document, {resultTypes: ['violations']})"


def violations(watched: Watched, path: str) -> list[str]:
    """Serious and critical ones of a page, each with the first elements that have it."""
    page = watched.open(path)
    before = list(watched.faults)
    page.evaluate(AXE.read_text())
    found: list[dict[str, Any]] = page.evaluate(RUN)["violations"]
    watched.faults[:] = before  # axe styles what it measures, which the policy forbids
    return [
        f"{path}: {each['id']}: {each['help']}: {json.dumps([node['html'][:120] for node in each['nodes'][:3]])}"
        for each in found
        if each["impact"] in GRAVE
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_is_found(watched: Watched, operator: User, theme: str) -> None:
    operator.is_staff = operator.is_superuser = True
    operator.save()
    run = make_lively_run(steps=4)
    group, held = make_group(run, rewards=[1.0, 0.0]), make_group(run, rewards=[1.0, 0.0])
    make_batch(run, 3, [group])
    with store.beyond_rights():
        until = timezone.now() + timedelta(hours=1)
        ScoredGroup.objects.filter(pk=held.pk).update(state="held", review_until=until)
    labels.say(group, user=somebody(), actor="user:somebody", verdict="reject", tags=["loop"], note="it repeats")
    acts.perform(run, Verb.EXCLUDE, [group.pk], user=somebody(), actor="user:somebody", note="for now")
    queue = queues.create(run.project, name="Loops", actor="user:ada", tags=["loop"], guideline="Does it repeat?")
    pairs, corrected = (
        queues.create(run.project, name=unit, actor="user:ada", unit=unit) for unit in ("pair", "rollout")
    )
    for each in (pairs, corrected):
        turns.take(each, operator)
    story.submit(run, [story.scored("chosen")], actor="api:t")
    made = making.make(run.project, name="good", form="examples", recipe=Recipe(runs=[run.key]), actor="user:ada")
    watched.page.set_viewport_size({"width": 1280, "height": 900})
    watched.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    paths = [
        f"/runs/{run.key}/people/",
        f"/runs/{run.key}/groups/{group.key}/",
        f"/runs/{run.key}/groups/{held.key}/",
        "/queues/",
        f"/queues/{queue.key}/",
        *(f"/queues/{each.key}/annotate/" for each in (queue, pairs, corrected)),
        "/datasets/",
        f"/datasets/{made.dataset.key}/",
        f"/datasets/{made.dataset.key}/1/",
        "/exports/",
        "/admin/",
        "/admin/rollouts/scoredgroup/",
        f"/admin/rollouts/scoredgroup/{group.pk}/change/",
    ]
    found = [fault for path in paths for fault in violations(watched, path)]
    assert found == [], "\n".join(found)
