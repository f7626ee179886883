"""What becomes of inference servers that are slow, full, hung, or cannot be started: row by row, without processes."""

import errno
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from rollouts.models import PolicyVersion, Replica, ReplicaKind, Run
from rollouts.reasons import ReasonCode
from rollouts.services.runs import answers, policies, replicas
from rollouts.states import ReplicaState
from tests.factories import words
from tests.workers.making import make_run, make_server, make_started_run
from tests.workers.reconciling import reconciling, write_version
from tests.workers.stub_server import stub_server
from tests.workers.waiting import eventually
from workers.database import with_connection
from workers.fleet import hub, lifecycle, serving, training, tries
from workers.fleet.inference import ReplicaUnreachable, VllmAdmin
from workers.fleet.lifecycle import UnrecoverableError
from workers.fleet.serving import Servers
from workers.launchers.base import Observation

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def runs(settings: Any, tmp_path: Path) -> None:
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server's process lives and is probed in each pass; another is never started."""
    monkeypatch.setattr(lifecycle, "observe", lambda replica: Observation(True, heartbeat_age_s=0.0))
    monkeypatch.setattr(serving, "_start", lambda run, slot: None)
    for name, seconds in [("PROBE_EVERY_S", 0.0), ("PROBE_PAUSE_S", 0.0), ("PROBE_DEADLINE_S", 0.2)]:
        monkeypatch.setattr(serving, name, seconds)


def tended(run: Run, server: Replica, *, passes: int = 1) -> str:
    servers = Servers()
    for _ in range(passes):
        servers.tend(run)
    return Replica.objects.get(pk=server.pk).state


def ago(seconds: float) -> Any:
    return timezone.now() - timedelta(seconds=seconds)


@pytest.mark.usefixtures("probed")
@pytest.mark.parametrize("policy", ["", "rival"])
def test_full_server_in_which_the_probe_has_no_turn_stays_as_long_as_others_get_tokens(policy: str) -> None:
    run = make_started_run(policies=[{"name": "rival", "model": "start"}])
    with stub_server() as stub:
        server = make_server(run, stub.url, policy=policy)
        stub.mode = "full"
        assert tended(run, server, passes=serving.EJECT_AFTER + 1) == ReplicaState.READY
        assert stub.asked == serving.EJECT_AFTER + 1
        replicas.suspect(server, reason=words("late"))
        assert tended(run, server) == ReplicaState.READY
        stub.mode = "hang"
        assert tended(run, server) == ReplicaState.SUSPECT
        assert tended(run, server, passes=serving.EJECT_AFTER) == ReplicaState.LOST


@pytest.mark.usefixtures("probed")
def test_answer_to_a_driver_while_the_probe_waits_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_started_run()
    server = make_server(run, "http://127.0.0.1:9")
    Replica.objects.filter(pk=server.pk).update(answered_at=ago(60))

    def late(admin: VllmAdmin, deadline_s: float) -> None:
        with_connection(answers.note, [server])
        raise ReplicaUnreachable("too late")

    monkeypatch.setattr(VllmAdmin, "probe", late)
    assert tended(run, server) == ReplicaState.READY


@pytest.mark.usefixtures("probed")
def test_server_has_the_time_to_read_its_model_before_its_first_answer(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").touch()
    os.truncate(model / "model.safetensors", 100 * 10**9)
    run = make_started_run(model__path=str(model))
    server = replicas.create(run, kind=ReplicaKind.INFERENCE, slot=0, launcher="local")
    replicas.address(server, base_url="http://127.0.0.1:9")
    began = Replica.objects.filter(pk=server.pk)
    began.update(begun_at=ago(1000))
    assert tended(run, server) == ReplicaState.STARTING
    began.update(begun_at=ago(serving.START_DEADLINE_S + 2100))
    assert tended(run, server) == ReplicaState.LOST


@pytest.mark.usefixtures("probed")
def test_starting_server_that_a_reconciler_left_paused_as_it_loaded_is_loaded_again() -> None:
    run = make_started_run()
    policies.published(write_version(run, 1))
    with stub_server() as stub:
        stub.paused, stub.label = True, "loading"
        server = replicas.create(run, kind=ReplicaKind.INFERENCE, slot=0, launcher="local")
        replicas.address(server, base_url=stub.url)
        assert tended(run, server) == ReplicaState.READY
        assert (stub.paused, stub.label) == (False, "1")


def test_model_has_the_size_of_its_files_by_its_path_and_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    fetched = tmp_path / "models--org--model"
    for place in (fetched / "blobs", fetched / "snapshots" / "abc"):
        place.mkdir(parents=True)
    (fetched / "blobs" / "1").write_bytes(b"x" * 7)
    (fetched / "snapshots" / "abc" / "model.safetensors").symlink_to(fetched / "blobs" / "1")
    (fetched / "snapshots" / "abc" / "gone").symlink_to(fetched / "blobs" / "2")
    assert hub.size_bytes("org/model") == hub.size_bytes(str(fetched / "snapshots" / "abc")) == 7
    assert hub.size_bytes("") == hub.size_bytes("org/other") == 0


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_what_a_run_starts_from_is_registered_with_its_size(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"x" * 7)
    run = make_run(model__path=str(model), inference__replicas=0)
    with reconciling():
        first = eventually(PolicyVersion.objects.filter(run=run).first)
    assert first is not None
    assert (first.version, first.size_bytes) == (0, 7)


def refuse_directories(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def mkdir(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)


@pytest.mark.parametrize("kind", [ReplicaKind.INFERENCE, ReplicaKind.TRAINER])
def test_full_disk_costs_no_start_and_is_named(monkeypatch: pytest.MonkeyPatch, kind: ReplicaKind) -> None:
    run = make_started_run()
    refuse_directories(monkeypatch, errno.ENOSPC)
    tend = Servers().tend if kind == ReplicaKind.INFERENCE else training.tend
    times = max(serving.MAX_FAILED_STARTS, training.MAX_RESTARTS) + 1
    for _ in range(times):
        tend(run)
        tend(run)  # too soon
        Replica.objects.update(ended_at=ago(tries.AWAY_S))
    rows = Replica.objects.filter(run=run, kind=kind)
    assert list(rows.values_list("state", "reason_code")) == [("lost", ReasonCode.LAUNCHER_AWAY)] * times
    assert "No space left on device" in rows[0].state_reason
    run.refresh_from_db()
    assert run.trainer_restarts == 0


def test_directory_that_may_not_be_made_fails_the_run_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "back_off_s", lambda failures, *, longest_s: 0.0)
    run = make_started_run()
    refuse_directories(monkeypatch, errno.EACCES)
    servers = Servers()
    for _ in range(serving.MAX_FAILED_STARTS):
        servers.tend(run)
    with pytest.raises(UnrecoverableError, match=rf"Permission denied: '{run.directory}"):
        servers.tend(run)
