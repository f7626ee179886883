"""A version goes live by whoever can load it, whatever other servers do; and one that nobody can load ends its run."""

from pathlib import Path
from typing import Any

import pytest

from rollouts.models import Event, Replica, Run
from rollouts.services.runs import replicas
from rollouts.states import PolicyVersionState, ReplicaState
from tests.workers.making import make_server, make_started_run
from tests.workers.reconciling import write_version
from tests.workers.stub_server import StubServer, stub_server
from workers.fleet import inference, lifecycle, publishing
from workers.fleet.lifecycle import UnrecoverableError
from workers.fleet.publishing import publish
from workers.launchers.base import LaunchError

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def runs(settings: Any, tmp_path: Path) -> None:
    settings.ROLLYARD_RUNS_DIR = tmp_path / "runs"


def make_servers(run: Run, *stubs: StubServer) -> list[Replica]:
    return [make_server(run, stub.url, slot=slot) for slot, stub in enumerate(stubs)]


def bring_back(*servers: Replica) -> None:
    """As if they had loaded the live version and answered."""
    for server in servers:
        server.refresh_from_db()
        replicas.ready(server, loaded_version=0)


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


def test_version_that_no_server_can_load_ends_the_run_after_three_times_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "AGAIN_S", 0.0)
    run = make_started_run(inference__replicas=2)
    with stub_server() as first, stub_server() as second:
        servers = make_servers(run, first, second)
        first.mode = second.mode = "half"
        version = write_version(run, 1)
        for _ in range(publishing.MAX_FAILED_LOADS - 1):
            assert publish(run) is None
            bring_back(*servers)
        with pytest.raises(UnrecoverableError, match=r"could load version 1, 3 times; the last: Version 1 from .*500"):
            publish(run)
    tried = Event.objects.filter(object_kind="policyversion", object_id=version.pk, from_state="written")
    assert tried.count() == publishing.MAX_FAILED_LOADS


def test_version_that_no_server_could_load_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_started_run()
    with stub_server() as stub:
        servers = make_servers(run, stub)
        stub.mode = "half"
        version = write_version(run, 1)
        assert publish(run) is None
        bring_back(*servers)
        stub.mode = "ok"
        assert publish(run) is None
        assert len(stub.loads) == 1
        monkeypatch.setattr(publishing, "AGAIN_S", 0.0)
        assert publish(run) == version


def test_version_that_comes_to_no_node_ends_no_run_and_is_loaded_as_soon_as_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "AGAIN_S", 0.0)
    run = make_started_run()

    def bring(replica: Replica, path: Path) -> None:
        raise LaunchError("step_1 was not brought to its node: No space left on device")

    with stub_server() as stub:
        servers = make_servers(run, stub)
        version = write_version(run, 1)
        with monkeypatch.context() as full:
            full.setattr(lifecycle, "bring", bring)
            for _ in range(publishing.MAX_FAILED_LOADS + 1):
                assert publish(run) is None
                bring_back(*servers)
        assert stub.loads == []
        told = Event.objects.filter(object_kind="policyversion", object_id=version.pk).latest("pk")
        assert "version 1 was not loaded: step_1 was not brought to its node: No space" in str(told.reason)
        assert publish(run) == version
