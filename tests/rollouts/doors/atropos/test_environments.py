"""Environments: register, ask how much is waiting, leave, and survive a reset that they did not hear of."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import pytest
from django.db.models.functions import Now

from rollouts.models import Batch, BatchItem, EnvironmentClient, Event, Run, RunEnvironment, ScoredGroup
from rollouts.reasons import Reason, ReasonCode
from rollouts.services.batches import forming
from rollouts.services.curation import exchange
from rollouts.services.outside import attempts, clients
from rollouts.states import ClientState, GroupState, RunState
from tests.factories import make_run
from tests.rollouts import story
from tests.rollouts.doors.atropos.api import Api, JsonObject, item, make_external_run
from trainers.wire import TrainingBatch, TrainingRollout

pytestmark = pytest.mark.django_db(transaction=True)


def started(*names: str, **terms: Any) -> Api:
    api = Api()
    api.start(**terms)
    for name in names:
        api.register_env(name)
    return api


def test_every_registration_is_an_environment_of_its_own() -> None:
    api = started()
    answers = [api.register_env(name) for name in ("gsm8k", "code", "gsm8k")]
    assert [(each["env_id"], each["wandb_name"]) for each in answers] == [(0, "gsm8k_0"), (1, "code_0"), (2, "gsm8k_1")]
    api.post("/disconnect-env", {"env_id": 0})
    assert api.register_env("gsm8k")["wandb_name"] == "gsm8k_2", "those that left count"
    assert set(RunEnvironment.objects.values_list("name", flat=True)) == {"gsm8k", "code"}


def test_the_newest_weight_is_the_one_of_the_mixture() -> None:
    api = started()
    for weight, expected in ((2.0, 2.0), (0.0, 1e-6), (-3.0, 1e-6), (2e9, 1e9)):
        api.register_env(weight=weight)
        assert RunEnvironment.objects.get().weight == pytest.approx(expected)


def test_an_environment_that_comes_back_with_another_weight_has_its_share_from_then() -> None:
    api = started(batch_size=4)
    light, other = (api.register_env(name, weight=each)["env_id"] for name, each in (("light", 0.01), ("other", 1.0)))

    def batch_of(*senders: int) -> set[str]:
        for each in senders:
            api.submit(env_id=each)
        assert api.get("/batch")["batch"] is not None
        newest = BatchItem.objects.filter(batch=Batch.objects.latest("step"))
        return set(newest.values_list("group__environment__name", flat=True))

    assert batch_of(light, other) == {"light", "other"}
    assert batch_of(light, other, other) == {"other"}, "it has had its share for long"
    again = api.register_env("light", weight=1.0)["env_id"]
    assert batch_of(again, other, other) == {"light", "other"}


@pytest.mark.parametrize("name", ["", "\0", "x" * 300, "émoji 🙂", "a/b"])
def test_a_name_may_be_anything(name: str) -> None:
    api = started()
    assert api.register_env(name)["wandb_name"] == f"{name}_0".replace("\0", "\ufffd")
    api.submit(env_id=0)
    assert RunEnvironment.objects.get().groups.count() == 1


def test_an_environment_starts_where_the_run_is() -> None:
    api = started("gsm8k", starting_step=7, batch_size=2)
    for _ in range(3):
        api.submit(env_id=0)
    for _ in range(2):
        api.get("/batch")
    assert api.register_env("late")["starting_step"] == 9
    assert api.get("/status")["current_step"] == 9


def test_leaving_is_for_those_who_are_there() -> None:
    api = started("gsm8k", "code")
    assert api.post("/disconnect-env", {"env_id": -1}) == {"status": "success"}
    states = EnvironmentClient.objects.order_by("index").values_list("state", flat=True)
    assert list(states) == [ClientState.CONNECTED, ClientState.LEFT]
    for unknown in (2, -3, 10**12):
        answer = api.post("/disconnect-env", {"env_id": unknown})
        assert answer == {"status": "failure", "error": f"There is no environment {unknown}."}


def test_the_body_of_a_get_or_a_query_names_the_environment() -> None:
    api = started("gsm8k")
    expected = api.status_env(0)
    assert api.get("/status-env?env_id=0") == expected
    assert api.status_env(-1) == expected
    for path in ("/status-env", "/status-env?env_id=x", "/status-env?env_id=", "/status-env?other=1"):
        assert api.request("GET", path).status_code == 422


def test_queues_are_counted_per_environment() -> None:
    api = Api()
    api.start(batch_size=64)
    api.register_env("gsm8k", group_size=4, max_token_length=100, weight=3.0)
    api.register_env("code", group_size=8, max_token_length=100, weight=1.0, min_batch_allocation=0.25)
    for _ in range(3):
        api.submit(env_id=0, size=4)
    for _ in range(5):
        api.submit(env_id=1, size=8)
    assert api.status_env(0) == {
        "current_step": 0,
        "queue_size": (12 + 40 - 16) // 4,
        "unallocated_fraction": 0.75,
        "self_queue_size": 3,
        "max_group_size": 8,
        "env_weight": 0.75,
    }
    assert api.status_env(1) == {
        "current_step": 0,
        "queue_size": (40 + 16) // 8,
        "unallocated_fraction": 0.75,
        "self_queue_size": 5,
        "max_group_size": 8,
        "env_weight": 0.25,
    }


@pytest.mark.parametrize("kind", ["external", "rl"])
def test_the_minimum_allocation_of_a_crashed_environment_takes_nothing_from_the_others(kind: str) -> None:
    """An environment makes as much as is not allocated to others: of nothing it makes nothing."""
    api = started() if kind == "external" else rl_run()
    api.register_env("crashed", min_batch_allocation=0.5)
    api.register_env("other")
    assert api.status_env(1)["unallocated_fraction"] == 0.5
    silence = timedelta(seconds=clients.ALLOCATION_LAPSE_S + 1)
    EnvironmentClient.objects.filter(index=0).update(seen_at=Now() - silence)
    api.register_env("restarted", min_batch_allocation=0.5)
    assert api.status_env(1)["unallocated_fraction"] == 0.5
    if kind == "external":
        api.get("/batch")
        assert EnvironmentClient.objects.get(index=0).state == ClientState.LAPSED
        assert api.status_env(1)["unallocated_fraction"] == 0.5
    api.status_env(0)
    assert api.status_env(1)["unallocated_fraction"] == 0.0, "it was not crashed, and counts again"


UNKNOWN = {
    "queue_size": 0,
    "unallocated_fraction": 1.0,
    "self_queue_size": 0,
    "max_group_size": 1,
    "env_weight": 0.01,
}


@pytest.mark.parametrize("env_id", [0, 5, -1, 10**15])
def test_an_environment_that_nobody_knows_goes_on(env_id: int) -> None:
    assert Api().status_env(env_id) == {"current_step": 0, **UNKNOWN}
    api = Api()
    api.start(starting_step=4)
    assert api.status_env(env_id) == {"current_step": 4, **UNKNOWN}


def test_an_environment_that_did_not_hear_of_a_reset_is_taken_over() -> None:
    api = started("gsm8k", "code")
    before = api.status_env(1)
    api.request("GET", "/reset_data")
    assert api.status_env(1) == {"current_step": 0, **UNKNOWN}, "nobody registered yet"
    api.register()
    assert api.status_env(1) == before | {"env_weight": 1.0}, "alone by now"
    api.submit(env_id=1)
    client = EnvironmentClient.objects.order_by("id").last()
    assert client is not None
    assert (client.index, client.wandb_name, client.attempt.number) == (1, "code_0", 2)
    assert client.environment.groups.count() == 1
    api.get("/batch")
    assert api.register_env("late")["env_id"] == 2, "ids are not given twice"
    assert EnvironmentClient.objects.filter(attempt__number=2).count() == 2
    event = Event.objects.filter(object_kind="environmentclient").order_by("id")[2]
    assert event.reason == Reason(ReasonCode.CLIENT_TAKEN_OVER, number=2)


def test_who_registers_after_a_reset_is_not_taken_for_one_who_did_not_hear_of_it() -> None:
    api = started("gsm8k")
    api.request("GET", "/reset_data")
    api.start()
    assert api.register_env("code")["env_id"] == 1
    for env_id in (0, 1):
        api.submit(env_id=env_id)
    groups = ScoredGroup.objects.order_by("id").values_list("environment__name", flat=True)
    assert list(groups) == ["gsm8k", "code"]


def test_an_environment_that_did_not_hear_of_a_reset_is_told_lengths_in_batches_of_the_size_it_knows() -> None:
    """It keeps three batches of the old size ahead; the new trainer's are larger than all of that."""
    api = started("gsm8k")
    api.request("GET", "/reset_data")
    api.start(batch_size=32)
    for _ in range(15):
        api.submit(env_id=0)
    assert api.get("/status")["queue_size"] == 15
    told = api.status_env(0)
    assert (told["queue_size"], told["self_queue_size"]) == (1, 1)
    assert api.register_env("late")["env_id"] == 1
    assert api.status_env(1)["queue_size"] == 15, "it knows how large batches are now"


def test_groups_of_an_environment_that_did_not_hear_of_a_reset_keep_its_name() -> None:
    api = started("gsm8k")
    api.request("GET", "/reset_data")
    api.submit(env_id=0)
    assert RunEnvironment.objects.get().groups.count() == 1, "also between two attempts"
    api.register()
    api.submit(env_id=0)
    assert RunEnvironment.objects.get().groups.count() == 2


def test_every_request_is_a_sign_of_life() -> None:
    api = started("gsm8k")

    def seen() -> Any:
        return EnvironmentClient.objects.get().seen_at

    moments = [seen()]
    for act in (
        lambda: api.status_env(0),
        lambda: api.submit(env_id=0),
        lambda: api.post("/disconnect-env", {"env_id": 0}),
    ):
        act()
        moments.append(seen())
    assert moments == sorted(set(moments))


def test_a_run_that_has_not_begun_makes_environments_wait() -> None:
    api = Api(make_external_run(state=RunState.PENDING))
    api.register()
    assert api.get("/batch") == {"batch": None}
    assert api.register_env() == {"status": "wait for trainer to start"}
    Run.objects.update(state=RunState.STARTING)
    assert api.get("/batch") == {"batch": None}
    assert api.register_env()["status"] == "success"
    assert Run.objects.get().state == RunState.RUNNING


SAMPLED = [[1.0, -0.5, -0.25]] * 2
"""Inference logprobs of an item."""


def rl_run(**columns: Any) -> Api:
    """A run that our own trainer trains."""
    return Api(make_run(next_step=3, **columns))


def test_environments_are_told_how_many_rollouts_a_batch_of_tokens_is_expected_to_hold() -> None:
    overrides = {"batch.token_batch_size": 100, "sampling.group_size": 2, "inference.max_model_len": 64}
    api = rl_run(overrides=overrides | {"sampling.max_tokens": 8})
    assert api.get("/info")["batch_size"] == 2, "a group of two may have 128 tokens, and a batch has one group at least"
    api.register_env("gsm8k")
    api.submit(env_id=0, size=2, length=5, inference_logprobs=[[1.0] + [-0.5] * 4] * 2)
    assert api.get("/info")["batch_size"] == 20, "ten groups of ten tokens"


def test_environments_may_feed_a_run_with_a_trainer_of_ours() -> None:
    api = rl_run()
    config = api.run.parsed
    assert api.get("/info") == {"batch_size": config.batch.batch_size, "max_token_len": config.trainer.seq_len}
    assert api.get("/wandb_info") == {"group": api.run.key, "project": api.run.project.slug}
    answer = api.register_env("gsm8k")
    assert answer == {
        "status": "success",
        "env_id": 0,
        "wandb_name": "gsm8k_0",
        "checkpoint_dir": str(api.run.directory / "checkpoints"),
        "starting_step": 0,
        "checkpoint_interval": config.trainer.checkpoint_every,
        "num_steps": api.run.max_steps,
    }
    assert api.submit(env_id=0, inference_logprobs=SAMPLED) == {"status": "received"}
    status = api.status_env(0)
    assert (status["self_queue_size"], status["env_weight"]) == (1, 1.0)
    assert RunEnvironment.objects.get(name="gsm8k").weight == 1.0


def test_a_run_with_a_trainer_of_ours_is_not_trained_or_reset_from_outside() -> None:
    api = rl_run()
    api.submit(inference_logprobs=SAMPLED)
    before = Run.objects.values().get()
    assert isinstance(api.register()["uuid"], int)
    response = api.request("GET", "/batch")
    assert response.status_code == 409
    content: JsonObject = response.json()
    assert content["status"] == "error"
    assert "has a trainer of its own" in content["message"]
    assert content["batch"] == []
    assert api.request("GET", "/reset_data").text == "Reset successful"
    assert Run.objects.values().get() == before
    assert api.get("/status")["queue_size"] == 1
    assert attempts.current(api.run) is None


@pytest.mark.parametrize("logprobs", [None, [], [[1.0, -0.5, 1.0]] * 2])
def test_a_group_without_logprobs_to_compare_with_is_refused_to_a_trainer_that_does(logprobs: Any) -> None:
    api = rl_run()
    sent = [item(inference_logprobs=SAMPLED), item(inference_logprobs=logprobs)]
    response = api.request("POST", "/scored_data_list", json=sent)
    assert response.status_code == 422
    [fault] = response.json()["detail"]
    assert fault["loc"] == ["body", 1, "inference_logprobs"]
    assert "return logprobs, or send to a run of kind external" in fault["msg"]
    assert not ScoredGroup.objects.exists()
    rl_run(overrides={"algorithm.loss": {"type": "cross_entropy"}}).submit(inference_logprobs=logprobs)
    assert ScoredGroup.objects.exists()


def trained(api: Api, epoch: int) -> list[TrainingRollout]:
    """What the trainer gets of the first step."""
    delivery = forming.fetch(api.run, epoch=epoch, step=0)
    assert delivery is not None
    return msgspec.msgpack.decode(delivery.body, type=TrainingBatch).rollouts


ZERO = {"set_advantage_to_zero": True}


def test_a_rollout_whose_advantage_is_set_to_zero_has_none_and_counts_for_the_others() -> None:
    run, epoch = story.train(algorithm__advantage="mean")
    api = Api(run)
    overrides = [{}, ZERO, {"set_advantage_to_zero": False}, ZERO]
    api.submit(size=4, scores=[1.0, 0.0, 0.5, 0.5], inference_logprobs=SAMPLED * 2, overrides=overrides)
    rollouts = trained(api, epoch)
    assert [each.advantage for each in rollouts] == [0.5, 0.0, 0.0, 0.0]
    assert [each.reward for each in rollouts] == [1.0, 0.0, 0.5, 0.5]
    assert rollouts[0].advantages is None


def test_the_advantages_per_token_of_such_a_rollout_are_zero_too_and_are_exported_as_they_were_sent() -> None:
    run, epoch = story.train()
    api = Api(run)
    sent = [[0.0, 0.5, 0.25], [0.0, -0.5, -0.7]] * 2
    overrides = [{}, ZERO, ZERO, {}]
    api.submit(size=4, inference_logprobs=SAMPLED * 2, advantages=sent, overrides=overrides)
    got = [np.frombuffer(each.advantages or b"", "<f4").tolist() for each in trained(api, epoch)]
    assert got == [sent[0], [0.0] * 3, [0.0] * 3, pytest.approx(sent[3])]
    [group] = map(json.loads, exchange.export_groups(run))
    assert (group["advantages"], group["overrides"]) == (sent, overrides)


def test_a_group_in_which_every_advantage_is_set_to_zero_is_dropped_where_such_groups_are() -> None:
    api = Api(story.launch(algorithm__filter_zero_advantage=True))
    api.submit(inference_logprobs=SAMPLED, overrides=[ZERO, ZERO])
    assert ScoredGroup.objects.get().state_reason.startswith("zero advantage: every rollout has 0")
    api.submit(inference_logprobs=SAMPLED, overrides=[ZERO, {}])
    assert ScoredGroup.objects.filter(state=GroupState.READY).count() == 1


ONLY_OF_ATROPOS: list[tuple[JsonObject, str, str]] = [
    (
        {"overrides": [{"temperature": 0.5}, ZERO]},
        "overrides",
        "the overrides temperature, which only a trainer of Atrop",
    ),
    ({"overrides": [ZERO]}, "overrides", "1 overrides for 2 rollouts"),
    (
        {"group_overrides": {"sft": True, "group_size": 2}},
        "group_overrides",
        "the group_overrides sft, which only a tr",
    ),
    ({"advantages": [[0.5], [-0.5]]}, "advantages", "advantages are not one number per token"),
    ({"ref_logprobs": [[-0.5]]}, "ref_logprobs", "ref_logprobs are not one number per token"),
    ({"images": [None, ["data:image/png;base64,AAAA"]]}, "images", "It has images"),
    ({"distill_token_ids": [[[1, 2]] * 3] * 2}, "distill_token_ids", "It has distill_token_ids"),
    ({"distill_logprobs": [[[-0.5], [-0.5, -1.0]], []]}, "distill_logprobs", "It has distill_logprobs"),
]


@pytest.mark.parametrize(("asked", "key", "told"), ONLY_OF_ATROPOS)
def test_what_only_a_trainer_of_atropos_knows_is_refused_to_one_of_ours(asked: JsonObject, key: str, told: str) -> None:
    api = rl_run()
    good = item(inference_logprobs=SAMPLED)
    response = api.request("POST", "/scored_data_list", json=[good, good | asked])
    assert response.status_code == 422
    [fault] = response.json()["detail"]
    assert fault["loc"] == ["body", 1, key]
    assert told in fault["msg"]
    assert fault["msg"].endswith("send it without, or to a run of kind external")
    assert not ScoredGroup.objects.exists()
    Api().submit(**asked)


def test_every_key_at_fault_is_told_and_names_that_text_cannot_hold_are_repaired() -> None:
    overrides = [{"\ud800" + "x" * 1000: 1}, {}]
    body = json.dumps(item(overrides=overrides, images="a")).encode()
    headers = {"Content-Type": "application/json"}
    response = rl_run().request("POST", "/scored_data", content=body, headers=headers)
    faults = {fault["loc"][-1]: fault["msg"] for fault in response.json()["detail"]}
    assert faults.keys() == {"overrides", "images", "inference_logprobs"}
    assert "\ufffd" + "x" * 99 + ", which" in faults["overrides"]


def test_what_asks_for_nothing_is_taken_by_a_trainer_of_ours() -> None:
    nothing: list[JsonObject] = [
        {"overrides": [{}, {}], "group_overrides": {}, "images": [], "distill_token_ids": [], "distill_logprobs": []},
        {"overrides": [], "group_overrides": {"group_size": 2, "sft": False}, "images": [None, []], "advantages": []},
        {"overrides": [{"x": None}], "distill_token_ids": [[[]], [[]]], "distill_logprobs": [[], []], "images": ""},
        {"generation_params": {"temperature": 0.5}, "ref_logprobs": [[-1.0] * 3] * 2},
    ]
    api = rl_run()
    for each in nothing:
        assert api.submit(inference_logprobs=SAMPLED, **each) == {"status": "received"}


def test_a_run_of_ours_that_has_not_begun_makes_environments_wait() -> None:
    api = Api(make_run(state=RunState.PENDING))
    assert api.register_env() == {"status": "wait for trainer to start"}
