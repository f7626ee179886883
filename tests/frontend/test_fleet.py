"""The page of the fleet, and what a run has cost: every state in words, of one's own projects alone."""

import html
import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from rollouts.models import DriverLoad, KeptPool, Lease, Placement, ReplicaKind, ReplicaLoad, WorkerJob
from rollouts.states import REPLICA_ALIVE, GroupState, ReplicaState
from tests.factories import make_event, make_group, make_project, make_replica, make_run
from tests.frontend.test_hostile_text import SCRIPT


def text_of(client: Client, path: str) -> str:
    """The words of a page, each run of spaces as one."""
    page = client.get(path)
    assert page.status_code == 200
    main = page.content.decode().partition("<main")[2].partition("</main>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main)).split())


def test_an_empty_fleet_says_so(client: Client) -> None:
    text = text_of(client, "/fleet/")
    for words in ("nothing is idle for more than 10 min", "no run of your projects has a process", "None plays for a"):
        assert words in text


def test_a_replica_shows_what_it_is_busy_with(client: Client) -> None:
    run, now = make_run(name="lively"), timezone.now()
    replica = make_replica(run, host="gpu-box", gpus=1, cores=8, directory="/home/replicas/inference-0-1")
    ReplicaLoad.objects.create(
        replica=replica,
        heartbeat_at=now,
        reported_at=now,
        running=12,
        waiting=3,
        cache_share=0.41,
        tokens_per_s=1834.6,
    )
    text = text_of(client, "/fleet/")
    for words in (replica.name, "lively", "gpu-box 1 GPU 8 cores 1,835 12 3 waiting 41 %", "none: nothing is idle"):
        assert words in text
    page = client.get("/fleet/").content.decode()
    assert "/home/replicas/inference-0-1/log.txt" in page


@pytest.mark.parametrize("state", sorted(REPLICA_ALIVE))
@pytest.mark.parametrize("kind", ReplicaKind)
def test_every_state_of_a_replica_that_is_alive_is_shown(client: Client, state: ReplicaState, kind: str) -> None:
    make_replica(make_run(), kind=kind, state=state, answered_at=None, state_reason="it was told so")
    text = text_of(client, "/fleet/")
    assert f" {state} it was told so this machine" in text


def test_a_job_shows_what_it_waits_for_and_how_long_it_may_run(client: Client) -> None:
    run = make_run()
    make_replica(run, launcher="slurm", state="starting", state_reason="job 7 is queued: it waits for a licence")
    due_at = timezone.now() + timedelta(hours=2, seconds=30)
    job = make_replica(run, slot=1, launcher="slurm", host="n7", gpus=4, begun_at=timezone.now(), due_at=due_at)
    text = text_of(client, "/fleet/")
    for words in (
        "job 7 is queued: it waits for a licence no node yet",
        "n7 job rollyard-",
        ", 2 h left",
        "4 GPUs, 2 rep",
    ):
        assert words in text
    assert job.job_name in client.get("/fleet/").content.decode()


def test_alarms_name_what_is_idle_or_silent_and_what_to_do(client: Client) -> None:
    run, long_ago = make_run(), timezone.now() - timedelta(minutes=25)
    server = make_replica(run, gpus=1)
    ReplicaLoad.objects.create(replica=server, heartbeat_at=long_ago, reported_at=long_ago, idle_since=long_ago)
    DriverLoad.objects.create(run=run, holder="box:1", reported_at=long_ago)
    text = text_of(client, "/fleet/")
    for words in (
        "Alarms 3 to look at",
        f"{server.name} has had nothing to do for 25 min , and holds 1 GPU",
        "inference.replicas",
        f"nothing was seen of {server.name} for 25 min",
        "nothing was heard of the driver box:1 for 25 min",
        "idle 25 min 0 0 %",
    ):
        assert words in text


def test_drivers_show_what_they_do_whether_they_drain_and_who_says_nothing(client: Client) -> None:
    run, now = make_run(), timezone.now()
    DriverLoad.objects.create(
        run=run, holder="box:1", reported_at=now, sessions=9, asking=5, queued=2, is_draining=True
    )
    group = make_group(run, state=GroupState.PLAYING)
    Lease.objects.create(
        group=group, run=run, holder=SCRIPT, claimed_at=now, expires_at=now + timedelta(minutes=1), policy_version=0
    )
    text = text_of(client, "/fleet/")
    assert f"box:1 draining {run} 0 9 5 0 2" in text
    assert "1 tells nothing; the first of its leases ends at" in text


def test_workers_as_jobs_show_their_pool_where_they_are_and_why_they_wait(client: Client) -> None:
    assert "Workers as jobs" not in text_of(client, "/fleet/")
    KeptPool.objects.create(name="players", minimum=1, maximum=4, complaint=SCRIPT)
    due_at = timezone.now() + timedelta(hours=3, seconds=30)
    job = {"pool": "players", "due_at": due_at}
    WorkerJob.objects.create(token="a", number="7", state="running", node="n1", is_draining=True, **job)
    WorkerJob.objects.create(token="b", pool="players", number="8", state="pending", why="job 8 is queued: no node")
    WorkerJob.objects.create(token="c", number="9", state="failed", node="n2")
    text = text_of(client, "/fleet/")
    assert "pool players : it is not kept as it should be; administrators see why" in text
    assert (
        "players 1 at work, 1 to 4 wanted job 7 is running on n1 , 3 h left draining job 8 is queued: no node" in text
    )
    assert "started by hand 0 at work job 9 is failed on n2" in text
    User.objects.update(is_superuser=True)
    assert f"pool players : {SCRIPT}" in text_of(client, "/fleet/")
    assert SCRIPT not in client.get("/fleet/").content.decode()


def test_gpus_of_another_project_are_another_projects(client: Client, stranger_client: Client) -> None:
    theirs = make_run(project=make_project("elsewhere"), name="secret")
    ours = make_run(name="lively")
    Placement.objects.create(run=ours, host="gpu-box", kind="gpu", unit="0")
    Placement.objects.create(run=theirs, host="gpu-box", kind="gpu", unit="1")
    make_replica(theirs, host="gpu-box")
    for gib in range(5):
        Placement.objects.create(run=ours if gib < 3 else theirs, host="gpu-box", kind="memory", unit=str(gib))
    text = text_of(client, "/fleet/")
    assert "5 GiB of memory promised GPU 0: lively GPU 1: another project" in text
    assert "on GPU 0 of gpu-box, with 3 GiB of memory of gpu-box" in text_of(client, f"/runs/{ours.key}/")
    assert "1 replica of another project" in text
    page = client.get("/fleet/").content.decode()
    assert "secret" not in page
    assert theirs.key not in page
    other = stranger_client.get("/fleet/").content.decode()
    assert "secret" in other
    assert ours.key not in other


def test_markup_of_machines_holders_and_reasons_stays_text(client: Client) -> None:
    run = make_run(name="x")
    make_replica(
        run, host=SCRIPT, launcher="slurm", gpus=1, begun_at=timezone.now(), state_reason=SCRIPT, directory=SCRIPT
    )
    DriverLoad.objects.create(run=run, holder=f"{SCRIPT}:1", reported_at=timezone.now())
    Placement.objects.create(run=run, host=SCRIPT, kind="gpu", unit=SCRIPT[:64])
    page = client.get("/fleet/").content.decode()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert page.count("&lt;script&gt;") >= 8, "each of them is shown"


def test_htmx_gets_what_follows_the_fleet_alone(client: Client) -> None:
    answer = client.get("/fleet/", headers={"hx-request": "true"})
    assert answer.content.decode().lstrip().startswith('<div id="fleet"')
    assert "HX-Request" in answer.headers["Vary"]


def test_a_run_shows_what_it_has_cost(client: Client) -> None:
    run, now = make_run(), timezone.now()
    path = reverse("run-cost", args=[run.key])
    assert "Nothing yet: no replica was started." in text_of(client, path)
    replica = make_replica(run, launcher="slurm", gpus=2, cores=8, begun_at=now - timedelta(seconds=100))
    make_event(run, kind="replica", object_id=replica.pk, to="ready")
    make_group(run, state=GroupState.STALE)
    text = text_of(client, path)
    assert re.search(r"starting 100 % 20\d 80\d Servers that did not answer yet", text)
    assert re.search(r"all 20\d 80\d 3 min 2\d s of one GPU, by 1 replica", text)
    assert "until now" in text


def test_a_run_without_gpus_is_measured_in_cores(client: Client) -> None:
    run = make_run(state="finished")
    ended = timezone.now()
    make_replica(run, state="exited", launcher="slurm", gpus=0, cores=2, begun_at=ended - timedelta(seconds=30))
    make_replica(run, slot=1, state="lost")
    text = text_of(client, reverse("run-cost", args=[run.key]))
    assert re.search(r"starting 100 % 0 6\d Servers", text)
    assert "1 min of one core, by 2 replicas" in text
    assert "1 replica began before it was noted what each computes on, and counts as nothing" in text
    assert "until now" not in text


def test_the_cost_follows_the_run(client: Client) -> None:
    run = make_run()
    answer = client.get(reverse("run-live", args=[run.key]), {"view": "cost"}, headers={"hx-request": "true"})
    assert 'id="run-cost"' in answer.content.decode()
    assert 'hx-swap-oob="morph"' in answer.content.decode()
