"""A run whose trainer changes its protocol, from Atropos' to our own or back."""

import pytest

from rollouts.errors import Conflict, StaleEpoch
from rollouts.models import Run, ScoredGroup
from rollouts.services.batches import forming
from rollouts.states import GroupState, RunState
from tests.rollouts import story
from tests.rollouts.doors.atropos.api import Api, make_external_run

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_trainer_of_our_own_protocol_is_told_how_to_go_on_after_one_of_atropos() -> None:
    api = Api()
    api.start(batch_size=2)
    api.submit()
    api.get("/batch")
    api.submit(size=64)
    with pytest.raises(Conflict, match=r"POST /reset_data.* begin at step 1"):
        forming.fetch(api.run, epoch=story.register(api.run).epoch, step=0)
    api.request("POST", "/reset_data")
    assert Run.objects.get().next_step == 1
    api.submit(size=64)
    epoch = story.register(api.run).epoch
    batch = forming.fetch(api.run, epoch=epoch, step=1)
    assert batch is not None
    assert story.ack(api.run, epoch, 1, batch.sha256) == 2


@pytest.mark.parametrize("is_again", [False, True], ids=["its first attempt", "an attempt that is open"])
def test_a_batch_that_a_trainer_of_our_own_protocol_left_holds_up_no_trainer_of_atropos(is_again: bool) -> None:
    run = make_external_run(max_steps=2)
    api = Api(run)
    if is_again:
        api.start(batch_size=2)
    api.submit(size=64)
    epoch = story.register(run).epoch
    assert forming.fetch(run, epoch=epoch, step=0) is not None
    api.register(batch_size=2)
    with pytest.raises(StaleEpoch):
        forming.fetch(run, epoch=epoch, step=0)
    assert api.get("/batch") == {"batch": None}
    assert Run.objects.get().next_step == 1
    left = ScoredGroup.objects.get()
    assert left.state == GroupState.SURPLUS
    assert left.state_reason == "its trainer had not acknowledged it when attempt 1 went on"
    api.submit()
    assert len(api.get("/batch")["batch"]) == 1
    assert (Run.objects.get().state, Run.objects.get().next_step) == (RunState.FINISHING, 2)
