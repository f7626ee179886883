"""Replicas of every kind, killed, hung, or never started: another takes the place, or the run says why not."""

import os
import platform
import signal
import sys
from pathlib import Path

import pytest

from environments.types import PlayedRollout
from rollouts.models import Checkpoint, Event, PolicyVersion, Replica, ReplicaKind, ReplicaLoad, Run
from rollouts.services.batches import forming
from rollouts.services.groups import leases, settling
from rollouts.services.runs import checkpoints, life, policies, replicas, trainer_writes
from rollouts.states import CheckpointState, PolicyVersionState, ReplicaState, RunState
from tests.workers.making import make_run
from tests.workers.reconciling import (
    CRASH,
    STAY,
    child_pid,
    is_live,
    processes,
    ready_server,
    reconciling,
    replica,
    state,
    train_with,
    write_version,
)
from tests.workers.stub_server import tell
from tests.workers.waiting import eventually
from trainers.wire import CheckpointIn, StepAck
from workers.fleet import inference, lifecycle, retention, serving, training
from workers.launchers.base import scratch
from workers.launchers.processes import carriers

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("stand_ins")]


def never_eject(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long this machine takes until a test says that the server is well again."""
    monkeypatch.setattr(serving, "EJECT_AFTER", 10_000)
    monkeypatch.setattr(serving, "SILENT_S", 10_000.0)


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


def test_what_replicas_have_and_are_busy_with_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LOAD_EVERY_S", 0.2)
    train_with(monkeypatch, STAY)
    run = make_run()
    with reconciling():
        server = ready_server(run)
        load = eventually(ReplicaLoad.objects.filter(replica=server, idle_s__gt=0).first)
        trainer = eventually(Replica.objects.filter(run=run, kind=ReplicaKind.TRAINER, load__isnull=False).first)
        assert load is not None
        assert trainer is not None
        assert (load.running, load.waiting) == (0, 0)
        assert load.heartbeat_at is not None
        for row in (server, trainer):
            row.refresh_from_db()
            assert (row.host, row.due_at, row.gpus) == (platform.node(), None, 0)
            assert row.cores is not None
            assert 1 <= row.cores <= (os.cpu_count() or 1)


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


def test_server_that_fails_some_probes_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    never_eject(monkeypatch)
    run = make_run()
    with reconciling():
        server = ready_server(run)
        tell(server.base_url, "error")
        eventually(replica(run, ReplicaKind.INFERENCE, ReplicaState.SUSPECT))
        tell(server.base_url, "ok")
        eventually(replica(run, ReplicaKind.INFERENCE, ReplicaState.READY))
    assert Replica.objects.filter(run=run, kind=ReplicaKind.INFERENCE).count() == 1


def test_server_that_loads_half_is_brought_back_to_the_live_version(monkeypatch: pytest.MonkeyPatch) -> None:
    never_eject(monkeypatch)
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


def test_server_that_never_starts_fails_the_run_with_the_end_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "argv", lambda *_, **__: [sys.executable, "-c", CRASH])
    run = make_run()
    with reconciling():
        eventually(lambda: state(run) == RunState.FAILED, within_s=120)
    run.refresh_from_db()
    assert "inference server 0 ended 3 times" in run.state_reason
    assert "ValueError: no such model" in run.state_reason
    assert processes(run) == set()


FAULTY = """
import json, os, sys
open(os.environ['ROLLYARD_FAULT_FILE'], 'w').write(json.dumps({'message': 'the model has no head'}))
raise ValueError('and so on, for pages')
"""


@pytest.mark.parametrize("kind", [ReplicaKind.INFERENCE, ReplicaKind.TRAINER])
def test_a_replica_that_dies_of_its_input_fails_the_run_at_once(
    monkeypatch: pytest.MonkeyPatch, kind: ReplicaKind
) -> None:
    if kind == ReplicaKind.INFERENCE:
        monkeypatch.setattr(inference, "argv", lambda *_, **__: [sys.executable, "-c", FAULTY])
    else:
        train_with(monkeypatch, FAULTY)
    run = make_run() if kind == ReplicaKind.INFERENCE else make_run(kind="sft", environments=[], data__path="x.jsonl")
    with reconciling():
        eventually(lambda: state(run) == RunState.FAILED, within_s=120)
    run.refresh_from_db()
    assert run.state_reason.endswith(": the model has no head")
    [died] = Replica.objects.filter(run=run, kind=kind)
    assert died.state_reason == "died: exit code 1: the model has no head"
    assert processes(run) == set()


def test_trainer_that_dies_without_progress_fails_the_run_with_the_end_of_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train_with(monkeypatch, CRASH)
    run = make_run(kind="sft", environments=[], data__path="nowhere.jsonl")
    with reconciling():
        eventually(lambda: state(run) == RunState.FAILED, within_s=120)
    run.refresh_from_db()
    assert "5 times without a step of progress" in run.state_reason
    assert "ValueError: no such model" in run.state_reason
    assert Replica.objects.filter(run=run, kind=ReplicaKind.TRAINER, state=ReplicaState.LOST).count() == 5


def test_killed_trainer_is_started_again_and_progress_resets_the_count() -> None:
    run = make_run(kind="sft", environments=[], data__path="nowhere.jsonl")
    with reconciling():
        first = eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
        assert first is not None
        epoch = trainer_writes.register_trainer(run, world_size=1, hostname="here", pid=1, actor="trainer").epoch
        os.kill(child_pid(first), signal.SIGKILL)
        eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING, other_than=first.pk))
        assert Run.objects.get(pk=run.pk).trainer_restarts == 1
        trainer_writes.ack_step(run, epoch=epoch, step=0, ack=StepAck(metrics={}))
        assert Run.objects.get(pk=run.pk).trainer_restarts == 0


def test_row_without_a_process_is_replaced() -> None:
    run = make_run()
    life.start(run)
    policies.register_initial(run, path="/somewhere/some-model")
    # As if the reconciler had died between the row and the process.
    abandoned = replicas.create(run, kind=ReplicaKind.INFERENCE, slot=0, launcher="local")
    with reconciling():
        ready_server(run, other_than=abandoned.pk)
    abandoned.refresh_from_db()
    assert "never started" in abandoned.state_reason


def test_old_weights_and_checkpoints_are_removed_and_the_newest_kept() -> None:
    run = make_run(kind="rl", trainer__keep_weights=3, trainer__keep_checkpoints=1, inference__replicas=0, max_steps=9)
    with reconciling():
        eventually(lambda: state(run) == RunState.STARTING)
        epoch = trainer_writes.register_trainer(run, world_size=1, hostname="here", pid=1, actor="trainer").epoch
        for number in range(1, 7):
            write_version(run, number)
            eventually(is_live(run, number))
        directory = Run.objects.get(pk=run.pk).directory
        for step in (2, 4):
            path = directory / "checkpoints" / f"step_{step}"
            path.mkdir(parents=True)
            checkpoint = CheckpointIn(step=step, path=str(path), manifest_sha256="0" * 64, size_bytes=1)
            checkpoints.add_checkpoint(run, epoch=epoch, checkpoint=checkpoint)
        eventually(lambda: Checkpoint.objects.filter(run=run, state=CheckpointState.DELETED).exists())
        eventually(lambda: PolicyVersion.objects.filter(run=run, version__lt=3, version__gt=0, path="").count() == 2)
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == ["step_4"]
    assert sorted(path.name for path in (directory / "weights").iterdir()) == ["step_3", "step_4", "step_5", "step_6"]
    assert PolicyVersion.objects.get(run=run, version=6).state == PolicyVersionState.LIVE


def test_trainer_that_hangs_in_a_step_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "STEP_DEADLINE_S", 0.5)
    run = make_run(inference__replicas=0, max_steps=1)
    with reconciling():
        first = eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
        assert first is not None
        eventually(is_live(run, 0))
        epoch = trainer_writes.register_trainer(run, world_size=1, hostname="here", pid=1, actor="trainer").epoch
        rollout = PlayedRollout(token_ids=[1, 2], loss_mask=[0, 1], inference_logprobs=[0.0, -1.0], reward=1.0)
        for claim in leases.claim(Run.objects.get(pk=run.pk), holder="test", limit=2, lease_s=60).claims:
            settling.settle(token=claim.token, problem_key="a", rollouts=[rollout, rollout], worker="test")
        assert forming.fetch(run, epoch=epoch, step=0) is not None
        eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING, other_than=first.pk))
    first.refresh_from_db()
    assert "step 0 was not done" in first.state_reason
    assert not carriers(str(first.token))


def test_trainer_that_was_ended_from_outside_costs_no_attempt() -> None:
    run = make_run(kind="sft", environments=[], data__path="nowhere.jsonl")
    with reconciling():
        first = eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
        assert first is not None
        child_pid(first)
        lifecycle.launcher_of(first).stop(lifecycle.handle_of(first), 10)
        eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING, other_than=first.pk))
    assert Run.objects.get(pk=run.pk).trainer_restarts == 0


def test_files_outside_the_run_are_never_removed(tmp_path: Path) -> None:
    run = make_run(trainer__keep_weights=3)
    outside = tmp_path / "outside"
    outside.mkdir()
    run.directory.mkdir(parents=True)
    (run.directory / "link").symlink_to(outside)
    for number in range(1, 6):
        path = run.directory / "link" if number == 1 else outside
        PolicyVersion.objects.create(run=run, version=number, path=str(path), state=PolicyVersionState.SUPERSEDED)
    retention.prune(run)
    assert outside.is_dir()


def test_the_end_of_a_log_is_the_trainers_own_exception() -> None:
    run = make_run()
    row = replicas.create(run, kind=ReplicaKind.TRAINER, slot=0, launcher="local")
    log = Path(row.directory) / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text(
        "loading\n"
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "rl.py", line 1, in train\n'
        "[rank0]: trainers.errors.ControlPlaneRefused: 422 invalid\n"
        "Traceback (most recent call last):\n"
        '  File "run.py", line 9, in <module>\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "====================\n"
    )
    assert lifecycle.last_log_lines(row) == "trainers.errors.ControlPlaneRefused: 422 invalid"
    log.write_text("one\n\ntwo\nthree\nfour\n")
    assert lifecycle.last_log_lines(row) == "two | three | four"


def test_a_fault_that_is_nested_without_end_is_none() -> None:
    row = lifecycle.reserve(make_run(), kind=ReplicaKind.TRAINER, slot=0)
    place = scratch(Path(row.directory))
    place.mkdir(parents=True)
    for fault in (b"[" * 50_000, b'{"message": ' + b"[" * 50_000):
        (place / "fault.json").write_bytes(fault)
        assert lifecycle.fault_of(row) == ""
