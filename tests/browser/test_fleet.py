"""The fleet and the cost of a run in a browser: nothing serious for axe, nothing sideways, and the page follows."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from rollouts.models import DriverLoad, Event, KeptPool, Placement, Replica, ReplicaKind, ReplicaLoad, Run, WorkerJob
from rollouts.services.runs import life
from rollouts.states import GroupState
from tests import store
from tests.browser.test_accessible import violations
from tests.browser.watched import Watched
from tests.factories import make_event, make_group, make_lively_run, make_project, make_replica, make_run

pytestmark = pytest.mark.browser


def busy(run: Run, slot: int, **columns: Any) -> None:
    """A server at work since three hours ago, and how much."""
    now, began = timezone.now(), timezone.now() - timedelta(hours=3)
    replica = make_replica(run, slot=slot, host="gpu-box", gpus=1, cores=8, loaded_version=7, directory="/r/replica")
    load = {"running": 24 + slot, "waiting": 3, "cache_share": 0.41, "tokens_per_s": 1834.6, "idle_s": 900, **columns}
    ReplicaLoad.objects.create(replica=replica, heartbeat_at=now, reported_at=now, **load)
    event = make_event(run, kind="replica", object_id=replica.pk, to="ready")
    with store.beyond_rights():
        Replica.objects.filter(pk=replica.pk).update(created_at=began)
        Event.objects.filter(pk=event.pk).update(at=began + timedelta(minutes=4))


@pytest.fixture
def run() -> Run:
    """A run with all that a fleet can show."""
    now = timezone.now()
    run = make_lively_run(steps=20, name="calculator-qwen3-8b")
    busy(run, 0)
    busy(run, 1, running=0, waiting=0, cache_share=0.0, tokens_per_s=0.2, idle_since=now - timedelta(minutes=25))
    job = {"launcher": "slurm", "job_number": "812", "gpus": 2, "cores": 16, "directory": "/r/replica"}
    why = "job 812 is queued: the nodes that it wants are down, drained or reserved (ReqNodeNotAvail, May be reserved)"
    make_replica(run, slot=2, state="starting", answered_at=None, state_reason=why, **job)
    began = {"host": "n7.cluster.example", "begun_at": now - timedelta(hours=3), "due_at": now + timedelta(hours=9)}
    trainer = make_replica(run, kind=ReplicaKind.TRAINER, **job, **began)
    ReplicaLoad.objects.create(replica=trainer, heartbeat_at=now - timedelta(minutes=2))
    make_event(run, kind="replica", object_id=trainer.pk, to="ready")
    for number in range(2):
        DriverLoad.objects.create(
            run=run, holder=f"gpu-box:{4711 + number}", reported_at=now, sessions=64, asking=40, is_draining=number > 0
        )
        Placement.objects.create(run=run, host="gpu-box", kind="gpu", unit=str(number))
    KeptPool.objects.create(name="players", minimum=2, maximum=16, complaint="there is no template 'wide'")
    WorkerJob.objects.create(token="a", pool="players", number="813", state="running", node="n8.cluster.example")
    WorkerJob.objects.create(token="b", pool="players", number="815", state="pending", why=why.replace("812", "815"))
    WorkerJob.objects.create(token="c", number="790", state="running", node="n9", is_draining=True)
    theirs = make_run(project=make_project("elsewhere"))
    Placement.objects.create(run=theirs, host="gpu-box", kind="gpu", unit="2")
    for state in (GroupState.TRAINED, GroupState.STALE, GroupState.FILTERED, GroupState.READY):
        make_group(run, state=state)
    return run


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1920), ("light", 768), ("light", 390)])
def test_pages_are_accessible_and_do_not_scroll_sideways(watched: Watched, run: Run, theme: str, width: int) -> None:
    watched.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    watched.page.set_viewport_size({"width": width, "height": 900})
    for name, path in {"fleet": "/fleet/", "cost": f"/runs/{run.key}/cost/"}.items():
        assert violations(watched, path) == []
        page = watched.open(path)
        page.screenshot(path=f"test-results/{name}-{theme}-{width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_follows_the_fleet(watched: Watched, run: Run) -> None:
    page = watched.open("/fleet/")
    expect(page.get_by_role("row", name="job 812 is queued")).to_be_visible()
    busy(run, 3)
    life.request_stop(run, actor="user:ada")
    expect(page.get_by_role("row", name="inference-3-")).to_contain_text("1,835")
    expect(page.get_by_label("GPUs by run")).to_contain_text("stopping")
    assert not watched.was_reloaded
