"""What a trainer says the optimizer saw: stored with the step, checked at the edge, read by those who may."""

import struct
from typing import Any

import msgspec
import pytest

from rollouts.models import Batch, Project, Role, Run, TokenValues
from rollouts.services.batches import forming
from tests import store
from tests.factories import make_project, make_user
from tests.rollouts import story
from tests.rollouts.api import Api, make_token, problem, row_counts
from trainers import wire
from trainers.wire import MSGPACK, StepAck, TrainingBatch

pytestmark = pytest.mark.django_db


@pytest.fixture
def trainer() -> "Trainer":
    return Trainer()


class Trainer:
    """A trainer that fetched the batch of step 0."""

    def __init__(self) -> None:
        self.run, self.epoch = story.train()
        story.generate(self.run)
        delivery = forming.fetch(self.run, epoch=self.epoch, step=0)
        assert delivery is not None
        self.sha256 = delivery.sha256
        self.rollouts = msgspec.msgpack.decode(delivery.body, type=TrainingBatch).rollouts
        self.values = [story.seen(rollout) for rollout in self.rollouts[:2]]
        self.api = Api(make_token(run=self.run), epoch=self.epoch)

    def ack(self, values: list[Any], *, packed: bool = True) -> Any:
        body = {"metrics": {"loss/mean": 0.5}, "batch_sha256": self.sha256, "token_values": values}
        path = f"runs/{self.run.key}/steps/0"
        if packed:
            return self.api.post(path, msgspec.msgpack.encode(body), content_type=MSGPACK)
        return self.api.post(path, body)


def floats(data: bytes | memoryview) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


@pytest.mark.parametrize("packed", [True, False], ids=["messagepack", "json"])
def test_values_come_with_the_acknowledgement_and_are_stored_as_they_came(trainer: Trainer, packed: bool) -> None:
    assert trainer.ack(trainer.values, packed=packed).json() == {"next_step": 1}
    rows = TokenValues.objects.select_related("rollout__group").order_by("rollout__group_id", "rollout__index")
    assert [(row.rollout.group.key, row.rollout.index) for row in rows] == [
        (values.group, values.index) for values in trainer.values
    ]
    for row, values in zip(rows, trainer.values, strict=True):
        assert row.batch.step == 0
        for name in ("trainer_logprobs", "entropies", "ratios", "advantages", "mask_reasons"):
            assert bytes(getattr(row, name)) == getattr(values, name)
        assert row.texts == values.texts


def test_an_acknowledgement_that_comes_again_stores_nothing_twice(trainer: Trainer) -> None:
    trainer.ack(trainer.values)
    before = list(TokenValues.objects.order_by("pk").values())
    counts = row_counts()
    assert trainer.ack(trainer.values).status_code == 200
    assert list(TokenValues.objects.order_by("pk").values()) == before
    assert row_counts() == counts


def test_a_step_that_is_trained_again_overwrites_its_values(trainer: Trainer) -> None:
    trainer.ack(trainer.values)
    assert trainer.ack([story.seen(trainer.rollouts[0], ratio=2.5)]).status_code == 200
    rows = TokenValues.objects.order_by("rollout__group_id", "rollout__index")
    assert [floats(row.ratios)[-1] for row in rows] == [2.5, 1.5]


def test_values_need_not_come_and_texts_may_be_unknown(trainer: Trainer) -> None:
    assert trainer.ack([]).status_code == 200
    assert trainer.ack([story.seen(trainer.rollouts[0], texts=None)]).status_code == 200
    assert TokenValues.objects.get().texts is None


NAN, INFINITY = struct.pack("<4f", 0, 0, float("nan"), 0), struct.pack("<4f", 0, 0, 0, float("inf"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"group": "nobody"}, "token_values.1"),
        ({"group": ""}, "token_values.1"),
        ({"group": "a\0"}, "token_values.1.group"),
        ({"index": 99}, "token_values.1"),
        ({"index": -1}, "token_values.1"),
        ({"index": 10**18}, "token_values.1"),
        ({"trainer_logprobs": b""}, "token_values.1.trainer_logprobs"),
        ({"entropies": bytes(15)}, "token_values.1.entropies"),
        ({"ratios": bytes(20)}, "token_values.1.ratios"),
        ({"ratios": NAN}, "token_values.1.ratios"),
        ({"advantages": INFINITY}, "token_values.1.advantages"),
        ({"mask_reasons": bytes(5)}, "token_values.1.mask_reasons"),
        ({"mask_reasons": b""}, "token_values.1.mask_reasons"),
        ({"mask_reasons": b"\0\0\0\x08"}, "token_values.1.mask_reasons"),
        ({"mask_reasons": bytes(wire.MAX_VALUE_TOKENS)}, "token_values"),
        ({"texts": ["a"]}, "token_values.1.texts"),
        ({"texts": ["a", "b", "c", "d" * 201]}, "token_values.1.texts"),
        ({"texts": ["a", "b", "c", "\0"]}, "token_values.1.texts.3"),
    ],
    ids=str,
)
def test_values_that_cannot_be_are_refused_and_nothing_is_stored(
    trainer: Trainer, change: dict[str, Any], field: str
) -> None:
    bad = msgspec.structs.replace(trainer.values[1], **change)
    before = row_counts()
    assert field in problem(trainer.ack([trainer.values[0], bad]), 422, "invalid")["fields"]
    assert row_counts() == before
    assert story.fresh(trainer.run).next_step == 0
    assert Batch.objects.get().state == "delivered"
    assert trainer.ack(trainer.values).status_code == 200


@pytest.mark.parametrize("value", [7, [7], [{}], [[]], {"a": 1}, [{"group": "g", "index": 0, "ratios": "?"}]], ids=str)
def test_values_of_another_shape_are_refused(trainer: Trainer, value: Any) -> None:
    before = row_counts()
    for packed in (True, False):
        problem(trainer.ack(value, packed=packed), 422, "invalid")
    assert row_counts() == before


def test_a_rollout_may_not_be_named_twice(trainer: Trainer) -> None:
    fields = problem(trainer.ack([trainer.values[0], trainer.values[0]]), 422, "invalid")["fields"]
    assert list(fields) == ["token_values.1"]


def test_a_rollout_of_another_batch_or_one_that_was_not_trained_is_refused(trainer: Trainer) -> None:
    other = Trainer()
    problem(trainer.ack(other.values), 422, "invalid")
    item = Batch.objects.get(run=trainer.run).items.order_by("position").first()
    assert item is not None
    item.advantages = [None, *item.advantages[1:]]  # as for a rollout that was cut off
    with store.beyond_rights():
        item.save()
    problem(trainer.ack(trainer.values[:1]), 422, "invalid")


def test_a_supervised_run_has_no_rollouts_to_speak_of(trainer: Trainer) -> None:
    run = story.launch_supervised()
    api = Api(make_token(run=run), epoch=story.register(run).epoch)
    body = msgspec.msgpack.encode(StepAck(metrics={}, token_values=trainer.values))
    answer = api.post(f"runs/{run.key}/steps/0", body, content_type=MSGPACK)
    assert "token_values" in problem(answer, 422, "invalid")["fields"]


def test_values_are_read_beside_what_the_engine_said(trainer: Trainer) -> None:
    entropies = struct.pack("<4f", 0.0, 0.0, 0.7, 1.1)
    trainer.ack([msgspec.structs.replace(values, entropies=entropies) for values in trainer.values])
    listed = trainer.api.get(f"runs/{trainer.run.key}/steps/0/token-values").json()["rollouts"]
    assert [(each["group"], each["index"], each["token_count"], each["step"]) for each in listed] == [
        (values.group, values.index, 4, 0) for values in trainer.values
    ]
    read = trainer.api.get(f"runs/{trainer.run.key}/token-values/{listed[0]['id']}").json()
    assert read | listed[0] == read
    assert read["token_ids"] == [65, 66, 67, 68]
    assert read["texts"] == ["t0", "t1", "t2", "t3"]
    assert read["inference_logprobs"] == [None, None, -0.5, -0.5]
    assert read["trainer_logprobs"] == [None, None, -0.25, -0.25]
    assert read["ratios"] == [None, None, 1.5, 1.5]
    assert read["entropies"] == [None, None, 0.7, 1.1], "and not 0.699999988079071"
    assert read["advantages"][2] == pytest.approx(trainer.rollouts[0].advantage)
    assert read["mask_reasons"] == ["not_sampled", "not_sampled", "trained", "trained"]
    assert trainer.api.get(f"runs/{trainer.run.key}/steps/1/token-values").json() == {"rollouts": []}


def test_only_members_of_the_project_read_values(trainer: Trainer) -> None:
    trainer.ack(trainer.values)
    number = TokenValues.objects.order_by("pk").first().pk  # type: ignore[union-attr]
    paths = [f"runs/{trainer.run.key}/{path}" for path in ("steps/0/token-values", f"token-values/{number}")]
    foreign = make_project("elsewhere")
    stranger = Api(make_token(project=foreign, user=make_user("eve", role=Role.ADMIN, project=foreign)))
    other_run = Api(make_token(run=story.launch()))
    viewer = Api(make_token(role=Role.VIEWER))
    for path in paths:
        assert viewer.get(path).status_code == 200
        problem(stranger.get(path), 404, "not_found")
        problem(other_run.get(path), 404, "not_found")
        problem(Api().get(path), 401, "not_authenticated")


@pytest.mark.parametrize("number", [0, 10**30])
def test_values_of_another_run_are_not_found_under_this_one(trainer: Trainer, number: int) -> None:
    trainer.ack(trainer.values)
    own = TokenValues.objects.order_by("pk").first()
    assert own is not None
    other: Run = story.launch()
    api = Api(make_token(project=Project.objects.get(pk=other.project_id)))
    problem(api.get(f"runs/{other.key}/token-values/{own.pk}"), 404, "not_found")
    problem(api.get(f"runs/{trainer.run.key}/token-values/{number}"), 404, "not_found")
