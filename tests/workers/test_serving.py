"""What becomes of inference servers that are slow, full, hung, or cannot be started: row by row, without processes."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from rollouts.models import Replica, Run
from rollouts.services.runs import answers, replicas
from rollouts.states import ReplicaState
from tests.factories import words
from tests.workers.making import make_server, make_started_run
from tests.workers.stub_server import stub_server
from workers.database import with_connection
from workers.fleet import lifecycle, serving
from workers.fleet.inference import ReplicaUnreachable, VllmAdmin
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
