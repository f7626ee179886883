"""A web process that dies at each named crash point, and what its clients find when it is back."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollouts import crashpoints
from rollouts.crashpoints import CrashPoint
from rollouts.models import Batch, Run, Scope, ScoredGroup
from rollouts.services import runs
from rollouts.states import BatchState, GroupState
from tests.browser.server import Server
from tests.chaos import history
from tests.chaos.checker import check
from tests.chaos.clients import Submitter, Trainer, parser
from tests.chaos.history import Outcome
from tests.chaos.load import make_group
from tests.factories import make_project
from tests.rollouts.api import make_token
from trainers.config import resolve

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

WHILE_SUBMITTING = [CrashPoint.BEFORE_INSERT, CrashPoint.AFTER_INSERT, CrashPoint.AFTER_COMMIT]
WHILE_FETCHING = [CrashPoint.BEFORE_ASSEMBLY, CrashPoint.BEFORE_SEND, CrashPoint.MID_BODY]


class MortalServer(Server):
    """A web process that may be killed."""

    def status(self) -> int:
        """How it ended."""
        assert self._process is not None
        return self._process.wait(10)


class Scene:
    """A run with a submitter and a trainer, whose web process comes and goes."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        resolved = resolve("external-trainer", overrides={"batch.batch_size": 8, "sampling.group_size": 4})
        self.run = runs.start(runs.create(project=make_project(), user=None, resolved=resolved, actor="user:ada"))
        self.directory = directory
        self.server = MortalServer()
        self._monkeypatch = monkeypatch
        words = ["-", "--url", self.server.url, "--run", self.run.key]
        words += ["--token", make_token([Scope.SUBMIT, Scope.TRAIN, Scope.READ])]
        options = [
            parser().parse_args([*words, "--number", name, "--history", str(directory / f"{name}.jsonl")])
            for name in "12"
        ]
        self.submitter, self.trainer = Submitter(options[0]), Trainer(options[1])
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

    def outcomes(self) -> list[Outcome]:
        return [call.outcome for call in history.read(self.directory, self.run.key)]

    def check(self) -> None:
        assert check(self.run, history.read(self.directory, self.run.key)) == []


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


@pytest.mark.parametrize("point", WHILE_SUBMITTING)
def test_groups_are_stored_all_or_none_and_sending_them_again_stores_them_once(scene: Scene, point: CrashPoint) -> None:
    with scene.web(dies_at=point):
        assert scene.submitter.submit(scene.groups) is Outcome.UNKNOWN
    assert ScoredGroup.objects.count() == (2 if point is CrashPoint.AFTER_COMMIT else 0)
    with scene.web():
        assert scene.submitter.submit(scene.groups) is Outcome.OK
    assert ScoredGroup.objects.count() == 2
    scene.check()


@pytest.mark.parametrize("point", WHILE_FETCHING)
def test_a_batch_that_did_not_arrive_is_the_same_batch_on_the_next_fetch(scene: Scene, point: CrashPoint) -> None:
    with scene.web():
        assert scene.submitter.submit(scene.groups) is Outcome.OK
        scene.trainer.register()
    with scene.web(dies_at=point):
        assert scene.trainer.fetch() is None
    assert scene.outcomes()[-1] is Outcome.UNKNOWN
    formed = Batch.objects.first()
    if point is CrashPoint.BEFORE_ASSEMBLY:
        assert formed is None
        assert set(ScoredGroup.objects.values_list("state", flat=True)) == {GroupState.READY}
    with scene.web():
        received = scene.trainer.fetch()
        assert received == Batch.objects.get().sha256
        assert formed is None or received == formed.sha256
        assert scene.trainer.acknowledge(received) is Outcome.OK
    scene.check()


def test_an_acknowledgement_that_was_lost_counts_once_when_it_is_sent_again(scene: Scene) -> None:
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
    scene.check()


def test_every_crash_point_is_met_by_a_test_above() -> None:
    assert {*WHILE_SUBMITTING, *WHILE_FETCHING, CrashPoint.BEFORE_ACK} == set(CrashPoint)
