"""The reconciler on real rows and real processes: whatever dies, rows and processes agree again."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from channels.layers import channel_layers
from django.db import connection

from environments.types import Rollout
from rollouts.models import Checkpoint, Evaluation, Event, PolicyVersion, Replica, ReplicaKind, Run, ScoredGroup
from rollouts.services import batches, groups, leases, policies, replicas, runs
from rollouts.states import CheckpointState, GroupState, PolicyVersionState, ReplicaState, RunState
from tests.workers.making import expire, make_run
from tests.workers.stub_server import tell
from tests.workers.waiting import eventually
from trainers.wire import CheckpointIn, PolicyVersionIn, StepAck, TrainingBatch
from workers import inference, lifecycle, serving, tasks, training
from workers.convergence import Convergence
from workers.database import with_connection
from workers.launchers.processes import carriers
from workers.leadership import Leadership
from workers.reconciler import Reconciler

pytestmark = pytest.mark.django_db(transaction=True)

STAY = "import signal; print('training', flush=True); signal.pause()"
CRASH = "raise ValueError('no such model')"


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Any) -> Iterator[None]:
    """Servers without a model and trainers without torch, quick deadlines, and no process left at the end."""
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"
    monkeypatch.setattr(
        inference,
        "argv",
        lambda model, port, config, *, cpu: [sys.executable, "-m", "tests.workers.stub_server", str(port)],
    )
    train_with(monkeypatch, STAY)
    for module, name, value in [
        (serving, "PROBE_EVERY_S", 0.2),
        (serving, "PROBE_PAUSE_S", 0.2),
        (serving, "PROBE_DEADLINE_S", 0.5),
        (lifecycle, "GRACE_S", 0.5),
    ]:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(lifecycle, "back_off_s", lambda failures, *, longest_s: 0.0)
    yield
    for replica in Replica.objects.all():
        lifecycle.launcher_of(replica).sweep(str(replica.token), 0)


def train_with(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(training, "argv", lambda run: [sys.executable, "-c", program])


@contextmanager
def reconciling(**options: Any) -> Iterator[Reconciler]:
    """A reconciler in a thread of its own."""
    started = threading.Event()
    box: list[tuple[Reconciler, asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        reconciler = Reconciler(**{"interval_s": 0.2, "ring": lambda run_id: None, **options})
        box.append((reconciler, asyncio.get_running_loop()))
        started.set()
        await reconciler.run()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert started.wait(20)
    reconciler, loop = box[0]
    try:
        yield reconciler
    finally:
        loop.call_soon_threadsafe(reconciler.stop)
        thread.join(60)
        assert not thread.is_alive()
        reconciler.threads.shutdown(wait=True)


def state(run: Run) -> str:
    return Run.objects.get(pk=run.pk).state


def replica(
    run: Run, kind: ReplicaKind, in_state: ReplicaState, *, other_than: int = 0
) -> Callable[[], Replica | None]:
    found = Replica.objects.filter(run=run, kind=kind, state=in_state).exclude(pk=other_than)
    return lambda: found.all().first()


def ready_server(run: Run, *, other_than: int = 0) -> Replica:
    found = eventually(replica(run, ReplicaKind.INFERENCE, ReplicaState.READY, other_than=other_than))
    assert found is not None
    return found


def processes(run: Run) -> set[int]:
    return {pid for row in Replica.objects.filter(run=run) for pid in carriers(str(row.token))}


def is_live(run: Run, version: int) -> Callable[[], bool]:
    return lambda: Run.objects.get(pk=run.pk).live_version == version


def child_pid(row: Replica) -> int:
    record = Path(row.directory) / "started.json"
    eventually(record.exists)
    content: dict[str, int] = msgspec.json.decode(record.read_bytes())
    return content["child_pid"]


def write_version(run: Run, version: int) -> PolicyVersion:
    """Files that look like weights, and their row."""
    path = Run.objects.get(pk=run.pk).directory / "weights" / f"step_{version}"
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"")
    return PolicyVersion.objects.create(run=run, version=version, path=str(path))


def train(run: Run) -> None:
    """Be the run's trainer until its last step, through the services that the REST API calls."""
    epoch = runs.register_trainer(run, world_size=1, hostname="here", pid=1, actor="trainer").epoch
    for step in range(run.max_steps):
        delivery = eventually(lambda step=step: batches.fetch(run, epoch=epoch, step=step), within_s=40)  # type: ignore[misc]
        assert delivery is not None
        batch = msgspec.msgpack.decode(delivery.body, type=TrainingBatch)
        assert batch.step == step
        path = run.directory / "weights" / f"step_{step + 1}"
        path.mkdir(parents=True)
        (path / "config.json").write_text("{}")
        (path / "model.safetensors").write_bytes(b"")
        version = PolicyVersionIn(version=step + 1, path=str(path), manifest_sha256="0" * 64, size_bytes=1)
        policies.announce(run, epoch=epoch, version_in=version)
        runs.ack_step(run, epoch=epoch, step=step, ack=StepAck(metrics={}, batch_sha256=delivery.sha256))
    runs.finish_training(run, epoch=epoch)


@pytest.fixture
def no_bells(settings: Any) -> Iterator[None]:
    """Redis is away: nobody hears anything."""
    nowhere = {"hosts": [{"address": "unix:///nowhere/redis.sock"}]}
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": nowhere}
    }
    channel_layers.backends = {}
    yield
    channel_layers.backends = {}


def test_run_goes_from_pending_to_finished_with_every_bell_cut(no_bells: None) -> None:
    run = make_run(evaluation__problems=3, evaluation__deadline_s=60)
    stop = threading.Event()
    patrol = threading.Thread(target=tasks.patrol, args=(0.2,), kwargs={"stopping": stop.is_set})
    patrol.start()

    def ring(run_id: int) -> None:
        raise ConnectionError("no broker")

    try:
        with reconciling(ring=ring):
            eventually(lambda: state(run) == RunState.STARTING)
            trainer = eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
            assert trainer is not None
            run.refresh_from_db()
            train(run)
            os.kill(child_pid(trainer), signal.SIGKILL)
            eventually(lambda: state(run) == RunState.FINISHED, within_s=40)
    finally:
        stop.set()
        patrol.join(30)
        eventually(lambda: not any(each.name == f"drive-{run.pk}" for each in threading.enumerate()))
    run.refresh_from_db()
    assert (run.next_step, run.live_version) == (4, 4)
    assert set(Evaluation.objects.filter(run=run).values_list("version", "state")) == {(0, "done"), (4, "done")}
    assert ScoredGroup.objects.filter(run=run, state=GroupState.TRAINED).count() == 8
    assert not ScoredGroup.objects.filter(run=run, state__in=["playing", "ready", "batched"]).exists()
    assert set(Replica.objects.filter(run=run).values_list("state", flat=True)) == {ReplicaState.EXITED}
    assert processes(run) == set()
    assert not run.tokens.exists()


def test_killed_server_is_replaced_and_serves_the_live_version() -> None:
    run = make_run()
    with reconciling():
        first = ready_server(run)
        eventually(is_live(run, 0))
        write_version(run, 1)
        eventually(is_live(run, 1))
        os.kill(child_pid(first), signal.SIGKILL)
        second = ready_server(run, other_than=first.pk)
    assert second.loaded_version == 1
    first.refresh_from_db()
    assert (first.state, first.exit_code) == (ReplicaState.LOST, -signal.SIGKILL)
    with serving.admin_of(second) as admin:
        assert admin.version() == 1


def test_hung_server_is_ejected_with_its_reason() -> None:
    run = make_run()
    with reconciling():
        first = ready_server(run)
        tell(first.base_url, "hang")
        second = ready_server(run, other_than=first.pk)
    assert second.slot == first.slot
    first.refresh_from_db()
    assert first.state == ReplicaState.LOST
    assert "failed probes" in first.state_reason
    assert not carriers(str(first.token))


def test_server_that_fails_some_probes_stays() -> None:
    run = make_run()
    with reconciling():
        server = ready_server(run)
        tell(server.base_url, "error")
        eventually(replica(run, ReplicaKind.INFERENCE, ReplicaState.SUSPECT))
        tell(server.base_url, "ok")
        eventually(replica(run, ReplicaKind.INFERENCE, ReplicaState.READY))
    assert Replica.objects.filter(run=run, kind=ReplicaKind.INFERENCE).count() == 1


def test_server_that_loads_half_is_brought_back_to_the_live_version() -> None:
    run = make_run(inference__replicas=2)
    with reconciling():
        eventually(lambda: Replica.objects.filter(run=run, kind="inference", state="ready").count() == 2)
        eventually(is_live(run, 0))
        write_version(run, 1)
        eventually(is_live(run, 1))
        bad = Replica.objects.get(run=run, kind="inference", slot=0)
        tell(bad.base_url, "half")
        write_version(run, 2)
        eventually(is_live(run, 2))
        eventually(lambda: Event.objects.filter(run=run, object_id=bad.pk, to_state="suspect").exists())
        tell(bad.base_url, "ok")
        eventually(lambda: Replica.objects.get(pk=bad.pk).state == ReplicaState.READY)
        with serving.admin_of(bad) as admin:
            assert (admin.version(), admin.is_paused()) == (2, False)


def test_server_that_never_starts_fails_the_run_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "argv", lambda *_, **__: [sys.executable, "-c", CRASH])
    run = make_run()
    with reconciling():
        eventually(lambda: state(run) == RunState.FAILED, within_s=40)
    run.refresh_from_db()
    assert "inference server 0 ended 3 times" in run.state_reason
    assert "ValueError: no such model" in run.state_reason
    assert processes(run) == set()


def test_trainer_that_dies_without_progress_fails_the_run_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    train_with(monkeypatch, CRASH)
    run = make_run(kind="sft", environments=[], data__path="nowhere.jsonl")
    with reconciling():
        eventually(lambda: state(run) == RunState.FAILED, within_s=40)
    run.refresh_from_db()
    assert "5 times without a step of progress" in run.state_reason
    assert "ValueError: no such model" in run.state_reason
    assert Replica.objects.filter(run=run, kind=ReplicaKind.TRAINER, state=ReplicaState.LOST).count() == 5


def test_killed_trainer_is_started_again_and_progress_resets_the_count() -> None:
    run = make_run(kind="sft", environments=[], data__path="nowhere.jsonl")
    with reconciling():
        first = eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
        assert first is not None
        epoch = runs.register_trainer(run, world_size=1, hostname="here", pid=1, actor="trainer").epoch
        os.kill(child_pid(first), signal.SIGKILL)
        eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING, other_than=first.pk))
        assert Run.objects.get(pk=run.pk).trainer_restarts == 1
        runs.ack_step(run, epoch=epoch, step=0, ack=StepAck(metrics={}))
        assert Run.objects.get(pk=run.pk).trainer_restarts == 0


def test_supervised_run_is_finished_when_its_trainer_is() -> None:
    run = make_run(kind="sft", environments=[], data__path="nowhere.jsonl", max_steps=1)
    with reconciling():
        trainer = eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
        assert trainer is not None
        epoch = runs.register_trainer(run, world_size=1, hostname="here", pid=1, actor="trainer").epoch
        runs.ack_step(run, epoch=epoch, step=0, ack=StepAck(metrics={}))
        runs.finish_training(run, epoch=epoch)
        os.kill(child_pid(trainer), signal.SIGTERM)
        eventually(lambda: state(run) == RunState.FINISHED)
    assert not Replica.objects.filter(run=run, kind=ReplicaKind.INFERENCE).exists()


def test_stop_ends_every_process_of_the_run() -> None:
    run = make_run()
    with reconciling():
        ready_server(run)
        eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
        assert len(processes(run)) == 4
        runs.request_stop(run, actor="user:admin", reason="enough")
        eventually(lambda: state(run) == RunState.STOPPED)
        assert processes(run) == set()
    run.refresh_from_db()
    assert run.state_reason == "enough"
    assert not run.tokens.exists()


def test_next_reconciler_adopts_what_the_last_one_started() -> None:
    run = make_run()
    with reconciling():
        server = ready_server(run)
        eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
    before = processes(run)
    with reconciling():
        answered_at = server.answered_at
        eventually(lambda: Replica.objects.get(pk=server.pk).answered_at != answered_at, what="a probe by the next one")
    assert Replica.objects.filter(run=run).count() == 2
    assert processes(run) == before


def test_row_without_a_process_is_replaced() -> None:
    run = make_run()
    runs.start(run)
    policies.register_initial(run, path="somebody/some-model")
    # As if the reconciler had died between the row and the process.
    abandoned = replicas.create(run, kind=ReplicaKind.INFERENCE, slot=0, launcher="local")
    with reconciling():
        ready_server(run, other_than=abandoned.pk)
    abandoned.refresh_from_db()
    assert "never started" in abandoned.state_reason


def test_process_of_a_run_that_is_over_is_swept() -> None:
    run = make_run()
    with reconciling():
        server = ready_server(run)
    # As if the reconciler had died between ending the run and ending its processes.
    runs.end(Run.objects.get(pk=run.pk), to=RunState.FAILED, reason="for the test")
    replicas.lost(server, exit_code=None, reason="for the test")
    assert len(processes(run)) == 4
    with reconciling():
        eventually(lambda: processes(run) == set())
    assert not Replica.objects.filter(run=run, state__in=["starting", "ready"]).exists()


def test_run_with_an_unknown_environment_fails_before_anything_starts() -> None:
    run = make_run(environments=[{"name": "no_such_environment"}])
    with reconciling():
        eventually(lambda: state(run) == RunState.FAILED)
    run.refresh_from_db()
    assert "no_such_environment" in run.state_reason
    assert not Replica.objects.filter(run=run).exists()


def test_run_that_hangs_holds_up_no_other() -> None:
    slow, quick = make_run(), make_run()
    release = threading.Event()
    real = Convergence().converge

    def converge(run_id: int) -> None:
        if run_id == slow.pk:
            release.wait(60)
        else:
            real(run_id)

    with reconciling(converge=converge):
        try:
            ready_server(quick)
        finally:
            release.set()


def test_only_one_of_two_leads_and_the_other_follows() -> None:
    first, second = Leadership(), Leadership()
    try:
        assert first.acquire()
        assert not second.acquire()
        assert first.holds()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted")
        assert not first.holds()
        assert eventually(second.acquire)
    finally:
        first.release()
        second.release()


def test_killed_database_sessions_stop_nothing() -> None:
    run = make_run()
    with reconciling():
        first = ready_server(run)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        os.kill(child_pid(first), signal.SIGKILL)
        ready_server(run, other_than=first.pk)


def test_expired_leases_of_a_poison_problem_are_given_up() -> None:
    run = make_run()
    with reconciling():
        eventually(is_live(run, 0))
        for _ in range(leases.MAX_ATTEMPTS):
            assert leases.claim(run, holder="dying", limit=1, lease_s=60).claims
            expire(run)
        eventually(lambda: ScoredGroup.objects.filter(run=run, state=GroupState.FAILED).exists())
    assert "quarantined" in ScoredGroup.objects.get(run=run, state=GroupState.FAILED).state_reason


def test_old_weights_and_checkpoints_are_removed_and_the_newest_kept() -> None:
    run = make_run(kind="rl", trainer__keep_weights=3, trainer__keep_checkpoints=1, inference__replicas=0, max_steps=9)
    with reconciling():
        eventually(lambda: state(run) == RunState.STARTING)
        epoch = runs.register_trainer(run, world_size=1, hostname="here", pid=1, actor="trainer").epoch
        for number in range(1, 7):
            write_version(run, number)
            eventually(is_live(run, number))
        directory = Run.objects.get(pk=run.pk).directory
        for step in (2, 4):
            path = directory / "checkpoints" / f"step_{step}"
            path.mkdir(parents=True)
            checkpoint = CheckpointIn(step=step, path=str(path), manifest_sha256="0" * 64, size_bytes=1)
            runs.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint)
        eventually(lambda: Checkpoint.objects.filter(run=run, state=CheckpointState.DELETED).exists())
        eventually(lambda: PolicyVersion.objects.filter(run=run, version__lt=3, version__gt=0, path="").count() == 2)
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == ["step_4"]
    assert sorted(path.name for path in (directory / "weights").iterdir()) == ["step_3", "step_4", "step_5", "step_6"]
    assert PolicyVersion.objects.get(run=run, version=6).state == PolicyVersionState.LIVE


def test_submitted_groups_need_no_driver() -> None:
    run = make_run(inference__replicas=0)
    rang: list[int] = []
    with reconciling(ring=rang.append):
        eventually(is_live(run, 0))
    rollout = Rollout(token_ids=[1, 2], loss_mask=[0, 1], inference_logprobs=[0.0, -1.0], reward=1.0)
    claims = leases.claim(Run.objects.get(pk=run.pk), holder="outside", limit=1, lease_s=60).claims
    groups.settle(token=claims[0].token, problem_key="a", rollouts=[rollout, rollout], worker="outside")
    assert rang == []
    with_connection(tasks.drive, run.pk)
