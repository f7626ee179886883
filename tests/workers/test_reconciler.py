"""The reconciler on real rows and processes: whatever dies, rows and processes agree again, and runs end."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from channels.layers import channel_layers
from django.db import OperationalError, connection

from environments.library.reverse_text import ReverseText
from environments.types import PlayedRollout, Split
from rollouts.models import Evaluation, Replica, ReplicaKind, Run, ScoredGroup
from rollouts.reasons import ReasonCode
from rollouts.services.batches import forming
from rollouts.services.groups import leases, settling
from rollouts.services.runs import life, policies, replicas, trainer_writes
from rollouts.states import GroupState, ReplicaState, RunState
from tests import factories
from tests.factories import words
from tests.workers.making import expire, make_run
from tests.workers.reconciling import (
    child_pid,
    is_live,
    processes,
    ready_server,
    reconciling,
    replica,
    state,
    write_version,
)
from tests.workers.waiting import IN_A_SANDBOX, eventually
from trainers.wire import PolicyVersionIn, StepAck, TrainingBatch
from workers import convergence, tasks
from workers.convergence import Convergence
from workers.database import with_connection
from workers.failures import failed
from workers.fleet import training
from workers.launchers import confinement, sandbox
from workers.launchers.sandbox import SandboxUnavailable
from workers.leadership import Leadership

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("stand_ins")]


def train(run: Run) -> None:
    """Be the run's trainer until its last step, through the services that the REST API calls."""
    epoch = trainer_writes.register_trainer(run, world_size=1, hostname="here", pid=1, actor="trainer").epoch
    for step in range(run.max_steps):
        delivery = eventually(lambda step=step: forming.fetch(run, epoch=epoch, step=step), within_s=120)  # type: ignore[misc]
        assert delivery is not None
        batch = msgspec.msgpack.decode(delivery.body, type=TrainingBatch)
        assert batch.step == step
        path = run.directory / "weights" / f"step_{step + 1}"
        path.mkdir(parents=True)
        (path / "config.json").write_text("{}")
        (path / "model.safetensors").write_bytes(b"")
        version = PolicyVersionIn(version=step + 1, path=str(path), manifest_sha256="0" * 64, size_bytes=1)
        policies.announce(run, epoch=epoch, version_in=version)
        trainer_writes.ack_step(run, epoch=epoch, step=step, ack=StepAck(metrics={}, batch_sha256=delivery.sha256))
    trainer_writes.finish_training(run, epoch=epoch)


@contextmanager
def polling(run: Run) -> Iterator[None]:
    """A worker that looks for work by itself; at the end nobody drives the run any more."""
    stop = threading.Event()
    thread = threading.Thread(target=tasks.poll_runs, args=(0.2,), kwargs={"stopping": stop.is_set})
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        eventually(lambda: not any(each.name == f"drive-{run.pk}" for each in threading.enumerate()))


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

    def ring(run_id: int) -> None:
        raise ConnectionError("no broker")

    with polling(run), reconciling(ring=ring):
        eventually(lambda: state(run) == RunState.STARTING)
        trainer = eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
        assert trainer is not None
        run.refresh_from_db()
        train(run)
        os.kill(child_pid(trainer), signal.SIGKILL)
        eventually(lambda: state(run) == RunState.FINISHED, within_s=120)
    run.refresh_from_db()
    assert (run.next_step, run.live_version) == (4, 4)
    assert set(Evaluation.objects.filter(run=run).values_list("version", "state")) == {(0, "done"), (4, "done")}
    assert ScoredGroup.objects.filter(run=run, state=GroupState.TRAINED).count() == 8
    assert not ScoredGroup.objects.filter(run=run, state__in=["playing", "ready", "batched"]).exists()
    assert set(Replica.objects.filter(run=run).values_list("state", flat=True)) == {ReplicaState.EXITED}
    assert processes(run) == set()
    assert not run.tokens.exists()


def test_a_stop_ends_the_processes_that_a_pass_over_the_run_is_waiting_for() -> None:
    run, hold, waiting, real = make_run(), threading.Event(), threading.Event(), Convergence()

    def converge(run_id: int) -> None:
        if hold.is_set() and not waiting.is_set():
            waiting.set()
            eventually(lambda: processes(run) == set(), within_s=90)  # as a server that answers never
        real.converge(run_id)

    with reconciling(converge=converge):
        ready_server(run)
        hold.set()
        assert waiting.wait(30)
        life.request_stop(run, actor="user:admin")
        eventually(lambda: state(run) == RunState.STOPPED)


def test_a_run_fails_where_no_sandbox_can_be_made_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise SandboxUnavailable("bubblewrap is missing: install it")

    monkeypatch.setattr(sandbox, "find_program", missing)
    monkeypatch.setattr(confinement, "complaint", confinement.complaint.__wrapped__)  # which has looked already
    run, external = make_run(), factories.make_run(preset="external-trainer", state=RunState.PENDING)
    with reconciling():
        eventually(lambda: state(run) == RunState.FAILED)
        eventually(lambda: state(external) == RunState.STARTING)
    run.refresh_from_db()
    assert run.reason_code == ReasonCode.NO_SANDBOX
    assert "bubblewrap is missing: install it" in run.state_reason
    assert not Replica.objects.filter(run=run).exists()


def test_the_evaluation_of_a_supervised_run_is_played_on_every_version_that_is_due() -> None:
    plan = {"problems": 2, "every": 2, "deadline_s": 60}
    run = make_run(kind="sft", data__path="nowhere.jsonl", max_steps=4, evaluation=plan)
    with polling(run), reconciling():
        trainer = eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
        assert trainer is not None
        epoch = trainer_writes.register_trainer(run, world_size=1, hostname="here", pid=1, actor="trainer").epoch
        for step in range(run.max_steps):
            trainer_writes.ack_step(run, epoch=epoch, step=step, ack=StepAck(metrics={}))
            if step % 2:
                write_version(run, step + 1)
        trainer_writes.finish_training(run, epoch=epoch)
        os.kill(child_pid(trainer), signal.SIGTERM)
        eventually(lambda: state(run) == RunState.FINISHED, within_s=180)
    evaluated = Evaluation.objects.filter(run=run).order_by("version")
    assert list(evaluated.values_list("version", "state")) == [(0, "done"), (2, "done"), (4, "done")]
    assert set(ScoredGroup.objects.filter(run=run).values_list("purpose", "state")) == {("eval", "evaluated")}
    assert processes(run) == set()


def test_supervised_run_is_finished_when_its_trainer_is() -> None:
    run = make_run(kind="sft", environments=[], data__path="nowhere.jsonl", max_steps=1)
    with reconciling():
        trainer = eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
        assert trainer is not None
        epoch = trainer_writes.register_trainer(run, world_size=1, hostname="here", pid=1, actor="trainer").epoch
        trainer_writes.ack_step(run, epoch=epoch, step=0, ack=StepAck(metrics={}))
        trainer_writes.finish_training(run, epoch=epoch)
        os.kill(child_pid(trainer), signal.SIGTERM)
        eventually(lambda: state(run) == RunState.FINISHED)
    assert not Replica.objects.filter(run=run, kind=ReplicaKind.INFERENCE).exists()


def test_stop_ends_every_process_of_the_run() -> None:
    run = make_run()
    with reconciling():
        ready_server(run)
        eventually(replica(run, ReplicaKind.TRAINER, ReplicaState.STARTING))
        assert len(processes(run)) == 2 * IN_A_SANDBOX
        life.request_stop(run, actor="user:admin", reason="enough")
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


def test_process_of_a_run_that_is_over_is_swept() -> None:
    run = make_run()
    with reconciling():
        server = ready_server(run)
    # As if the reconciler had died between ending the run and ending its processes.
    life.end(Run.objects.get(pk=run.pk), to=RunState.FAILED, reason=words("for the test"))
    replicas.lost(server, exit_code=None, reason=words("for the test"))
    assert len(processes(run)) == 2 * IN_A_SANDBOX
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


def test_run_with_an_environment_that_has_nothing_to_train_on_fails_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReverseText, "count", lambda self, split: 0 if split is Split.TRAIN else 8)
    run = make_run(environments=[{"name": "reverse_text", "problems": 4}])
    with reconciling():
        eventually(lambda: state(run) == RunState.FAILED)
    run.refresh_from_db()
    assert run.state_reason == "reverse_text has no problems to train on."


def test_a_database_that_is_away_as_a_run_begins_is_no_fault_of_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*arguments: object) -> None:
        raise OperationalError("couldn't get a connection after 10.00 sec")

    run = make_run(inference__replicas=0)
    with monkeypatch.context() as broken:
        broken.setattr(convergence.problems, "note_count", away)
        with pytest.raises(OperationalError):
            convergence.Convergence().converge(run.pk)
    assert Run.objects.get(pk=run.pk).state == RunState.PENDING


def test_run_on_which_every_look_breaks_fails_visibly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convergence, "BROKEN_DEADLINE_S", 0.5)

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(training, "tend", full)
    run = make_run(kind="sft", environments=[], data__path="nowhere.jsonl")
    with reconciling():
        eventually(lambda: state(run) == RunState.FAILED)
    run.refresh_from_db()
    assert "no space left on device" in run.state_reason


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
                " WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
            )
        os.kill(child_pid(first), signal.SIGKILL)
        ready_server(run, other_than=first.pk)


def test_expired_leases_of_a_poison_problem_are_given_up() -> None:
    run = make_run()
    with reconciling():
        eventually(is_live(run, 0))
        for _ in range(leases.MAX_LEASES):
            assert leases.claim(run, holder="dying", limit=1, lease_s=60).claims
            expire(run)
        eventually(lambda: ScoredGroup.objects.filter(run=run, state=GroupState.FAILED).exists())
    assert "quarantined" in ScoredGroup.objects.get(run=run, state=GroupState.FAILED).state_reason


def test_a_run_that_plays_for_nothing_ends_and_says_what_came_of_it() -> None:
    run = make_run(batch__max_fruitless_groups=3)
    with reconciling():
        eventually(is_live(run, 0))
        for _ in range(3):
            (claim,) = leases.claim(run, holder="driver", limit=1, lease_s=60).claims
            settling.settle(token=claim.token, problem_key="a", rollouts=failed(claim, KeyError("x")), worker="driver")
        eventually(lambda: state(run) == RunState.FAILED)
    run.refresh_from_db()
    assert run.state_reason.startswith("3 groups in a row were of no use (batch.max_fruitless_groups); the last: every")
    assert "KeyError" in run.state_reason


def test_submitted_groups_need_no_driver() -> None:
    run = make_run(inference__replicas=0)
    rang: list[int] = []
    with reconciling(ring=rang.append):
        eventually(is_live(run, 0))
    rollout = PlayedRollout(token_ids=[1, 2], loss_mask=[0, 1], inference_logprobs=[0.0, -1.0], reward=1.0)
    claims = leases.claim(Run.objects.get(pk=run.pk), holder="outside", limit=1, lease_s=60).claims
    settling.settle(token=claims[0].token, problem_key="a", rollouts=[rollout, rollout], worker="outside")
    assert rang == []
    with_connection(tasks.drive, run.pk)
