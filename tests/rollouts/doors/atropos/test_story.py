"""One run from the trainer's registration to its end, as unmodified clients live it."""

import pytest

from rollouts.models import Batch, Event, Run, ScoredGroup
from rollouts.reasons import ReasonCode
from rollouts.states import BatchState, GroupState, RunState
from tests.rollouts.doors.atropos.api import Api, item, tags

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_trainer_and_an_environment_meet() -> None:
    api = Api()
    assert api.get("/") == {"message": "AtroposLib API"}
    assert api.get("/info") == {"batch_size": -1, "max_token_len": -1}
    assert api.get("/wandb_info") == {"group": None, "project": None}
    assert api.register_env() == {"status": "wait for trainer to start"}
    uuid = api.register()["uuid"]
    assert isinstance(uuid, int)
    assert uuid > 2**64, "128 bits, as Atropos sends them"
    assert api.get("/info") == {"batch_size": 4, "max_token_len": 512}
    assert api.get("/wandb_info") == {"group": "group", "project": "project"}
    assert api.register_env() == {"status": "wait for trainer to start"}
    assert api.get("/batch") == {"batch": None}
    assert api.register_env() == {
        "status": "success",
        "env_id": 0,
        "wandb_name": "gsm8k_0",
        "checkpoint_dir": "/checkpoints",
        "starting_step": 0,
        "checkpoint_interval": 10,
        "num_steps": 100,
    }
    sent = [item(tag=tag, env_id=0, inference_logprobs=[[1.0, -0.5, -0.25]] * 2) for tag in (1, 2, 3)]
    for each in sent:
        assert api.post("/scored_data", each) == {"status": "received"}
    assert api.get("/status") == {"current_step": 0, "queue_size": 3}
    assert api.status_env(0) == {
        "current_step": 0,
        "queue_size": 3,
        "unallocated_fraction": 1.0,
        "self_queue_size": 3,
        "max_group_size": 2,
        "env_weight": 1.0,
    }
    batch = api.get("/batch")["batch"]
    assert tags(batch) == [1, 2]
    unset = dict.fromkeys(
        (
            "advantages", "ref_logprobs", "messages", "generation_params", "overrides", "group_overrides", "images",
            "distill_token_ids", "distill_logprobs",
        )
    )  # fmt: skip
    assert batch == [unset | each for each in sent[:2]]
    assert api.get("/status") == {"current_step": 1, "queue_size": 1}
    assert api.get("/batch") == {"batch": None}
    run = Run.objects.get()
    assert (run.state, run.next_step) == (RunState.RUNNING, 1)
    assert list(Batch.objects.values_list("step", "state")) == [(0, BatchState.TRAINED)]
    states = ScoredGroup.objects.order_by("id").values_list("state", flat=True)
    assert list(states) == [GroupState.TRAINED, GroupState.TRAINED, GroupState.READY]
    trained = Event.objects.filter(object_kind="scoredgroup", to_state=GroupState.TRAINED)
    assert {event.reason_code for event in trained} == {ReasonCode.MORE_ASKED_FOR}
