"""A version goes live by whoever can load it, whatever other servers do; and one that nobody can load ends its run."""

from pathlib import Path
from typing import Any

import pytest

from rollouts.models import Replica, Run
from rollouts.states import PolicyVersionState, ReplicaState
from tests.workers.making import make_server, make_started_run
from tests.workers.reconciling import write_version
from tests.workers.stub_server import StubServer, stub_server
from workers.fleet import inference
from workers.fleet.publishing import publish

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def runs(settings: Any, tmp_path: Path) -> None:
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"


def make_servers(run: Run, *stubs: StubServer) -> list[Replica]:
    return [make_server(run, stub.url, slot=slot) for slot, stub in enumerate(stubs)]


def test_server_that_hangs_as_it_is_to_pause_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_CALL_TIMEOUT_S", 1.0)
    run = make_started_run(inference__replicas=2)
    with stub_server() as stuck, stub_server() as good:
        servers = make_servers(run, stuck, good)
        stuck.mode = "stuck"
        version = write_version(run, 1, size_bytes=16 * 10**9)
        assert publish(run) == version
    version.refresh_from_db()
    assert version.state == PolicyVersionState.LIVE
    states = [Replica.objects.get(pk=server.pk).state for server in servers]
    assert states == [ReplicaState.SUSPECT, ReplicaState.READY]
