"""The protocol of a trainer over HTTP: register, fetch, acknowledge, announce, finish."""

import hashlib
import threading
import time
from typing import Any

import msgspec
import pytest
from django.db import connection

from rollouts.models import Batch, Run
from rollouts.services.runs import life
from rollouts.states import RunState
from tests.factories import words
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem, row_counts
from trainers.wire import MSGPACK, SHA256_HEADER, TrainerRegistration, TrainingBatch

pytestmark = pytest.mark.django_db


def files(run: Run, folder: str, number: int) -> dict[str, Any]:
    path = run.directory / folder / f"step_{number}"
    return {"path": str(path), "manifest_sha256": "a" * 64, "size_bytes": 7}


def register(run: Run) -> Api:
    """A registered trainer."""
    token = make_token(run=run)
    answer = Api(token).post(f"runs/{run.key}/trainer", {"world_size": 2, "hostname": "node-1", "pid": 7})
    assert answer.status_code == 200
    return Api(token, epoch=msgspec.json.decode(answer.content, type=TrainerRegistration).epoch)


def test_a_trainer_does_a_whole_run() -> None:
    run = story.launch()
    trainer = register(run)
    base = f"runs/{run.key}"
    for step in range(3):
        story.generate(run)
        answer = trainer.get(f"{base}/batches/{step}?wait_s=0")
        sha256 = hashlib.sha256(answer.content).hexdigest()
        assert answer.headers[SHA256_HEADER] == sha256
        assert answer.headers["ETag"] == f'"{sha256}"'
        assert answer.headers["Content-Type"] == MSGPACK
        assert len(msgspec.msgpack.decode(answer.content, type=TrainingBatch).rollouts) == 4
        ack = {"metrics": {"loss/mean": 0.1}, "batch_sha256": sha256}
        assert trainer.post(f"{base}/steps/{step}", ack).json() == {"next_step": step + 1}
        version = {"version": step + 1, **files(run, "weights", step + 1)}
        assert trainer.post(f"{base}/policy-versions", version).json() == {"version": step + 1, "state": "written"}
        checkpoint = {"step": step + 1, **files(run, "checkpoints", step + 1)}
        assert trainer.post(f"{base}/checkpoints", checkpoint).json() == {"state": "complete"}
        story.publish(run)
    for _ in range(2):
        assert trainer.post(f"{base}/trainer/finish").json() == {"state": "finishing"}
    problem(trainer.get(f"{base}/batches/3"), 410, "run_over")
    again = Api(make_token(run=run)).post(f"{base}/trainer")
    problem(again, 410, "run_over")


def test_every_write_of_an_older_trainer_is_answered_409_and_changes_nothing() -> None:
    run = story.launch()
    zombie = register(run)
    register(run)
    story.generate(run)
    before = row_counts()
    base = f"runs/{run.key}"
    for answer in (
        zombie.get(f"{base}/batches/0"),
        zombie.post(f"{base}/steps/0", {"metrics": {"loss/mean": 1.0}, "batch_sha256": "0" * 64}),
        zombie.post(f"{base}/policy-versions", {"version": 1, **files(run, "weights", 1)}),
        zombie.post(f"{base}/checkpoints", {"step": 1, **files(run, "checkpoints", 1)}),
        zombie.post(f"{base}/trainer/finish"),
    ):
        assert "newer trainer" in problem(answer, 409, "stale_epoch")["detail"]
    assert row_counts() == before
    assert story.fresh(run).next_step == 0


@pytest.mark.parametrize("epoch", [None, "", "-1", "x", "1.0", "9" * 5000, "٣"])
def test_a_write_without_a_sensible_epoch_is_refused(epoch: str | None) -> None:
    run = story.launch()
    register(run)
    api = Api(make_token(run=run))
    headers = {} if epoch is None else {"Rollyard-Epoch": epoch}
    answer = api.post(f"runs/{run.key}/steps/0", {"metrics": {}}, **headers)
    assert "Rollyard-Epoch" in problem(answer, 422, "invalid")["fields"]


@pytest.mark.parametrize("step", ["99", "10000000000", "1" + "0" * 30])
def test_a_huge_step_is_refused(step: str) -> None:
    run = story.launch()
    trainer = register(run)
    problem(trainer.get(f"runs/{run.key}/batches/{step}"), 410, "run_over")
    problem(trainer.post(f"runs/{run.key}/steps/{step}", {"metrics": {}}), 409, "conflict")


@pytest.mark.parametrize("step", ["-1", "x", "1.0", "", "9" * 5000, "%00", "1/2"])
def test_a_step_that_is_no_number_does_not_exist(step: str) -> None:
    run = story.launch()
    trainer = register(run)
    problem(trainer.get(f"runs/{run.key}/batches/{step}"), 404, "not_found")
    problem(trainer.post(f"runs/{run.key}/steps/{step}", {"metrics": {}}), 404, "not_found")


@pytest.mark.parametrize("wait", ["x", "-1", "nan", "--1", ""])
def test_a_wait_that_is_no_time_is_refused(wait: str) -> None:
    run = story.launch()
    trainer = register(run)
    assert "wait_s" in problem(trainer.get(f"runs/{run.key}/batches/0?wait_s={wait}"), 422, "invalid")["fields"]


def test_a_batch_that_is_not_ready_is_answered_204_after_the_wait() -> None:
    run = story.launch()
    trainer = register(run)
    began = time.monotonic()
    answer = trainer.get(f"runs/{run.key}/batches/0?wait_s=0.3")
    assert 0.3 <= time.monotonic() - began < 10
    assert (answer.status_code, answer.content) == (204, b"")
    assert not Batch.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_waiting_fetch_is_answered_as_soon_as_the_batch_is_full() -> None:
    run = story.launch()
    trainer = register(run)
    answers: list[Any] = []

    def wait() -> None:
        try:
            answers.append(trainer.get(f"runs/{run.key}/batches/0?wait_s=20"))
        finally:
            connection.close()

    thread = threading.Thread(target=wait)
    thread.start()
    story.submit(run, [story.scored("a"), story.scored("b")], actor="api:x")
    thread.join(15)
    assert not thread.is_alive()
    assert answers[0].status_code == 200


@pytest.mark.django_db(transaction=True)
def test_a_waiting_fetch_is_told_when_the_run_is_stopped() -> None:
    run = story.launch()
    trainer = register(run)
    answer, _ = story.together(
        lambda: trainer.get(f"runs/{run.key}/batches/0?wait_s=20"),
        lambda: life.request_stop(run, actor="user:ada"),
    )
    problem(answer, 410, "run_over")


def test_a_run_that_ended_says_so_to_every_write() -> None:
    run = story.launch()
    trainer = register(run)
    life.end(story.fresh(run), to=RunState.FAILED, reason=words("test"))
    base = f"runs/{run.key}"
    for answer in (
        trainer.get(f"{base}/batches/0"),
        trainer.post(f"{base}/steps/0", {"metrics": {}}),
        trainer.post(f"{base}/policy-versions", {"version": 1, **files(run, "weights", 1)}),
        trainer.post(f"{base}/checkpoints", {"step": 1, **files(run, "checkpoints", 1)}),
    ):
        problem(answer, 410, "run_over")


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("policy-versions", {"version": 0}),
        ("policy-versions", {"version": 10**30}),
        ("policy-versions", {"path": "/etc"}),
        ("policy-versions", {"path": "a\0b"}),
        ("policy-versions", {"path": "x" * 5000}),
        ("policy-versions", {"size_bytes": -1}),
        ("policy-versions", {"size_bytes": 2**63}),
        ("policy-versions", {"manifest_sha256": "z"}),
        ("policy-versions", {"state": "live"}),
        ("checkpoints", {"step": -1}),
        ("checkpoints", {"step": 10**30}),
        ("checkpoints", {"path": "../../x"}),
        ("checkpoints", {"path": "{run}/checkpoints/deep/step_1"}),
        ("checkpoints", {"path": "{run}/checkpoints/.."}),
        ("policy-versions", {"path": "{run}/weights/link"}),
        ("policy-versions", {"path": "{run}/checkpoints/step_1"}),
        ("checkpoints", {"size_bytes": 10**30}),
        ("steps/0", {"metrics": {"a": 1e300}}),
        ("steps/0", {"metrics": {"k" * 101: 1.0}}),
        ("steps/0", {"metrics": {"a\0": 1.0}}),
        ("steps/0", {"metrics": {f"k{number}": 1.0 for number in range(501)}}),
        ("steps/0", {"metrics": []}),
    ],
    ids=str,
)
def test_a_write_that_makes_no_sense_is_refused(path: str, change: dict[str, Any]) -> None:
    run = story.launch_supervised() if path.startswith("steps") else story.launch()
    trainer = register(run)
    sound = {
        "policy-versions": {"version": 1, **files(run, "weights", 1)},
        "checkpoints": {"step": 1, **files(run, "checkpoints", 1)},
        "steps/0": {"metrics": {}},
    }[path]
    if "path" in change:
        change = {"path": change["path"].replace("{run}", str(run.directory))}
        (run.directory / "weights").mkdir(parents=True)
        (run.directory / "weights" / "link").symlink_to("/etc")
    before = row_counts()
    problem(trainer.post(f"runs/{run.key}/{path}", sound | change), 422, "invalid")
    assert row_counts() == before
    assert trainer.post(f"runs/{run.key}/{path}", sound).status_code == 200


def test_an_acknowledgement_may_come_as_messagepack_with_numbers_that_json_has_not() -> None:
    run = story.launch_supervised()
    trainer = register(run)
    body = msgspec.msgpack.encode({"metrics": {"loss/mean": float("nan")}})
    answer = trainer.post(f"runs/{run.key}/steps/0", body, content_type=MSGPACK)
    assert problem(answer, 422, "invalid")["fields"] == {"metrics.loss/mean": "must be finite"}


def test_a_batch_comes_whatever_the_accept_header_says() -> None:
    run = story.launch()
    trainer = register(run)
    story.generate(run)
    for accept in (MSGPACK, "application/json", "text/html", "*/*"):
        assert trainer.get(f"runs/{run.key}/batches/0", Accept=accept).status_code == 200
        problem(trainer.get(f"runs/{run.key}/batches/3", Accept=accept), 410, "run_over")
