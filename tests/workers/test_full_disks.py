"""A disk of the control plane that is full ends no replica that is well, and keeps none from being ended."""

import base64
import errno
import json
import os
from pathlib import Path

import pytest

from rollouts.models import Replica
from rollouts.states import ReplicaState
from tests.factories import make_replica, make_run
from workers.fleet import lifecycle
from workers.launchers.base import Handle, Observation
from workers.launchers.local import LocalLauncher
from workers.slurm import carrier, queue
from workers.slurm.carrier import Carrier
from workers.slurm.launcher import SlurmLauncher
from workers.slurm.queue import Job

TOKEN = "0b1c2d3e-0000-4000-8000-00000000000a"


def full(*_: object, **__: object) -> None:
    """What anything says that would write."""
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def test_a_job_is_cancelled_where_it_cannot_be_asked_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, jobs = SlurmLauncher(tmp_path), {TOKEN: Job("7", "RUNNING", "None", "n1")}
    monkeypatch.setattr(launcher._queue, "jobs", lambda **_: jobs)
    monkeypatch.setattr(queue, "cancel", jobs.pop)
    monkeypatch.setattr(Path, "touch", full)
    launcher.stop(Handle(TOKEN, tmp_path / "trainer-0-1"), 20.0)
    assert jobs == {}


@pytest.mark.django_db
def test_a_replica_that_cannot_be_ended_keeps_no_other_from_being_noted_as_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run()
    stuck, other = (make_replica(run, slot=slot) for slot in range(2))

    def stop(_: LocalLauncher, handle: Handle, deadline_s: float) -> Observation:
        if handle.token == str(stuck.token):
            full()
        return Observation(False, 0)

    monkeypatch.setattr(LocalLauncher, "stop", stop)
    with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
        lifecycle.end([stuck, other], reason=None)
    assert Replica.objects.get(pk=stuck.pk).state == ReplicaState.STOPPING
    assert Replica.objects.get(pk=other.pk).state == ReplicaState.EXITED


class Telling:
    """A node on which a replica is well, and has something to say, until it ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.kept: list[list[str]] = []
        """What there was of it here, each time that it was asked."""

    def close(self) -> None:
        pass

    def ask(self, method: str, route: str, body: object = None) -> bytes:
        self.kept.append(sorted(path.name for path in self._directory.iterdir() if path.name != "job.json"))
        has_ended = len(self.kept) > 3
        status = {
            "has_begun": True,
            "logs": {} if has_ended else {"log.txt": base64.b64encode(b"a step\n").decode()},
            "reports": {"exit.json": {"token": TOKEN, "code": 0}} if has_ended else {"agent.json": {"token": TOKEN}},
            "fault": None,
            "offers": [],
            "heart_beats": len(self.kept),
        }
        return json.dumps(status).encode()


def test_a_heart_is_heard_where_the_log_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"token": TOKEN, "writes": [], "keeps": []}))
    (tmp_path / "log.txt").symlink_to("/dev/full")
    node = Telling(tmp_path)
    monkeypatch.setattr(carrier, "_LOOK_S", 0.0)
    monkeypatch.setattr(carrier, "_PAUSE_S", 0.0)
    monkeypatch.setattr(carrier, "Node", lambda *_: node)
    Carrier(tmp_path, "key", lambda: "http://n1").run()
    assert node.kept[2] == ["agent.json", "heartbeat", "log.txt"]
    assert (tmp_path / "exit.json").exists()
