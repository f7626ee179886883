"""A web process that dies at each named crash point, and what its clients find when it is back."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollouts import crashpoints
from rollouts.crashpoints import CrashPoint
from rollouts.models import Batch, Run, Scope, ScoredGroup
from rollouts.states import BatchState, GroupState
from tests.browser.server import Server
from tests.chaos import history
from tests.chaos.history import Call, Outcome
from tests.chaos.load import make_group
from tests.chaos.native_clients import Submitter, Trainer
from tests.chaos.world import Scene
from tests.rollouts.api import make_token

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

WHILE_SUBMITTING = [CrashPoint.BEFORE_INSERT, CrashPoint.AFTER_INSERT, CrashPoint.AFTER_COMMIT]
WHILE_FETCHING = [CrashPoint.BEFORE_ASSEMBLY, CrashPoint.BEFORE_SEND, CrashPoint.MID_BODY]


class MortalServer(Server):
    """A web process that may be killed."""

    def status(self) -> int:
        """How it ended."""
        assert self._process is not None
        return self._process.wait(10)


class Mortal(Scene):
    """A run with a submitter and a trainer, whose web process comes and goes."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(directory)
        self.server = MortalServer()
        self._monkeypatch = monkeypatch
        token = ["--token", make_token([Scope.SUBMIT, Scope.TRAIN, Scope.READ])]
        self.submitter = self.client(Submitter, 1, None, self.server.url, *token)
        self.trainer = self.client(Trainer, 2, None, self.server.url, *token)
        self.groups = [make_group(1, number) for number in (0, 1)]

    @contextmanager
    def web(self, dies_at: CrashPoint | None = None) -> Iterator[None]:
        """A web process while the block lasts; it must die in it where it is told to, and must not otherwise."""
        self._monkeypatch.setenv(crashpoints.VARIABLE, dies_at or "")
        self.server.start()
        try:
            yield
            if dies_at:
                assert self.server.status() == -signal.SIGKILL
        finally:
            self.server.stop()

    def last_call(self) -> Call:
        return history.read(self.directory, self.run.key)[-1]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mortal:
    return Mortal(tmp_path, monkeypatch)


@pytest.mark.parametrize("point", WHILE_SUBMITTING)
def test_groups_are_stored_all_or_none_and_sending_them_again_stores_them_once(
    scene: Mortal, point: CrashPoint
) -> None:
    with scene.web(dies_at=point):
        assert scene.submitter.submit(scene.groups) is Outcome.UNKNOWN
    assert ScoredGroup.objects.count() == (2 if point is CrashPoint.AFTER_COMMIT else 0)
    with scene.web():
        assert scene.submitter.submit(scene.groups) is Outcome.OK
    assert ScoredGroup.objects.count() == 2
    assert scene.violations() == set()


@pytest.mark.parametrize("point", WHILE_FETCHING)
def test_a_batch_that_did_not_arrive_is_the_same_batch_on_the_next_fetch(scene: Mortal, point: CrashPoint) -> None:
    with scene.web():
        assert scene.submitter.submit(scene.groups) is Outcome.OK
        scene.trainer.register()
    with scene.web(dies_at=point):
        assert scene.trainer.fetch() is None
    assert scene.last_call().outcome is Outcome.UNKNOWN
    formed = Batch.objects.first()
    if point is CrashPoint.MID_BODY and (heard := scene.last_call().heard):
        received, expected = map(int, re.findall(r"received (\d+) bytes, expected (\d+)", heard.detail)[0])
        assert received == expected // 2
    if point is CrashPoint.BEFORE_ASSEMBLY:
        assert formed is None
        assert set(ScoredGroup.objects.values_list("state", flat=True)) == {GroupState.READY}
    with scene.web():
        received = scene.trainer.fetch()
        assert received == Batch.objects.get().sha256
        assert formed is None or received == formed.sha256
        assert scene.trainer.acknowledge(received) is Outcome.OK
    assert scene.violations() == set()


def test_an_acknowledgement_that_was_lost_counts_once_when_it_is_sent_again(scene: Mortal) -> None:
    with scene.web():
        assert scene.submitter.submit(scene.groups) is Outcome.OK
        scene.trainer.register()
        received = scene.trainer.fetch()
        assert received is not None
    with scene.web(dies_at=CrashPoint.BEFORE_ACK):
        assert scene.trainer.acknowledge(received) is Outcome.UNKNOWN
    assert Batch.objects.get().state == BatchState.DELIVERED
    with scene.web():
        assert [scene.trainer.acknowledge(received) for _ in range(2)] == [Outcome.OK] * 2
    assert Run.objects.get().next_step == 1
    assert scene.violations() == set()


def test_every_crash_point_is_met_by_a_test_above() -> None:
    of_files = {CrashPoint.MID_EXPORT}  # met by tests/rollouts/datasets/test_files.py
    assert {*WHILE_SUBMITTING, *WHILE_FETCHING, CrashPoint.BEFORE_ACK} == set(CrashPoint) - of_files
