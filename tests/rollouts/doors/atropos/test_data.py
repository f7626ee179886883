"""Groups come in: what is stored of them, what is answered, and when they are refused."""

import pytest

from rollouts.models import Event, GroupTokens, Rollout, RunEnvironment, ScoredGroup
from rollouts.states import GroupState, RunState
from tests.factories import make_run
from tests.rollouts.doors.atropos.api import Api, introduction, item, make_external_run, registration

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_answer_means_that_the_group_is_stored() -> None:
    api = Api()
    api.start()
    api.register_env("gsm8k")
    assert api.submit(env_id=0, tag=5) == {"status": "received"}
    group = ScoredGroup.objects.select_related("environment").get()
    assert (group.state, group.rollout_count, group.token_count) == (GroupState.READY, 2, 6)
    assert (group.environment.name, group.reward_mean) == ("gsm8k", 0.5)
    assert GroupTokens.objects.count() == 1
    created = Event.objects.get(object_kind="scoredgroup")
    assert created.actor == "environment:gsm8k_0"
    assert set(Rollout.objects.values_list("worker", flat=True)) == {"environment:gsm8k_0"}


@pytest.mark.parametrize("env_id", [None, 7, -5])
def test_groups_of_nobody_registered_are_stored_and_keep_their_id(env_id: int | None) -> None:
    api = Api()
    assert api.submit(env_id=env_id) == {"status": "received"}
    assert ScoredGroup.objects.get().environment.name == "external"
    assert api.get("/latest_example")["env_id"] == env_id


def test_a_negative_id_counts_from_the_newest_environment() -> None:
    api = Api()
    api.start()
    for name in ("first", "second"):
        api.register_env(name)
    api.submit(env_id=-2)
    assert ScoredGroup.objects.get().environment.name == "first"


def test_rewards_that_are_all_equal_are_kept() -> None:
    api = Api()
    api.submit(scores=[1.0, 1.0])
    assert ScoredGroup.objects.get().state == GroupState.READY


def test_a_group_in_which_nothing_is_trained_is_received_and_dropped() -> None:
    api = Api()
    assert api.submit(masks=[[-100] * 3] * 2) == {"status": "received"}
    assert ScoredGroup.objects.get().state == GroupState.FAILED
    assert api.get("/status")["queue_size"] == 0
    assert api.get("/latest_example")["tokens"] == []


def test_small_groups_are_buffered_until_they_add_up() -> None:
    api = Api()
    api.start(batch_size=16)
    api.register_env(group_size=8)
    assert api.submit(size=3, env_id=0) == {"status": "buffered", "buffer_size": 3}
    assert api.submit(size=3, env_id=0) == {"status": "buffered", "buffer_size": 6}
    assert api.get("/status")["queue_size"] == 0
    assert api.submit(size=5, env_id=0) == {"status": "buffered", "buffer_size": 3}
    assert api.get("/status")["queue_size"] == 2
    assert api.submit(size=8, env_id=0) == {"status": "received"}
    assert api.submit(size=9, env_id=0) == {"status": "received"}, "Atropos would keep it for ever"
    assert api.get("/status")["queue_size"] == 4


def test_a_list_is_stored_whole_or_not_at_all() -> None:
    api = Api()
    api.start()
    api.register_env(group_size=4)
    api.register_env("second", group_size=2)
    groups = [item(env_id=0, size=1), item(env_id=1), item(env_id=0, size=4), item(env_id=0, size=2), item()]
    assert api.post("/scored_data_list", groups) == {
        "status": "received",
        "groups_processed": 5,
        "buffered": 2,
        "last_buffer_size": 3,
    }
    stored = ScoredGroup.objects.order_by("id").values_list("environment__name", "rollout_count")
    assert list(stored) == [("gsm8k", 1), ("second", 2), ("gsm8k", 4), ("gsm8k", 2), ("external", 2)]
    assert api.post("/scored_data_list", []) == {"status": "received", "groups_processed": 0}
    assert api.request("POST", "/scored_data_list", json=[item(), {}]).status_code == 422
    assert ScoredGroup.objects.count() == 5


def test_there_is_an_example_shape_before_there_is_an_example() -> None:
    api = Api()
    empty = (
        "tokens",
        "masks",
        "scores",
        "advantages",
        "ref_logprobs",
        "generation_params",
        "inference_logprobs",
        "messages",
        "images",
    )
    assert api.get("/latest_example") == {key: [] for key in empty}
    api.submit(tag=1)
    api.submit(tag=2)
    assert api.get("/latest_example")["tokens"][0][0] == 2


def test_a_group_of_the_native_api_is_an_item_too() -> None:
    """Our own drivers leave failed rollouts, of which an item has no word."""
    from environments.types import Message, PlayedGroup, PlayedRollout, RolloutError, StopReason
    from rollouts.formats.arrays import pack_group
    from rollouts.services.groups import intake

    api = Api()
    good = PlayedRollout(
        token_ids=[1, 2], loss_mask=[0, 1], inference_logprobs=[0.0, -0.5], reward=0.5,
        messages=[Message(role="user", content="hi")],
    )  # fmt: skip
    failed = PlayedRollout(
        token_ids=[], loss_mask=[], inference_logprobs=[], stop_reason=StopReason.ERROR,
        error=RolloutError(kind="policy", type="Timeout", message="no answer"),
    )  # fmt: skip
    group = PlayedGroup(environment="own", problem_key="1", rollouts=[good, failed, good])
    intake.submit(api.run, [pack_group(group, ("groups", 0))], actor="api:test")
    example = api.get("/latest_example")
    assert example["tokens"] == [[1, 2]] * 2
    assert example["masks"] == [[-100, 2]] * 2
    assert example["inference_logprobs"] == [[1.0, -0.5]] * 2
    assert example["scores"] == [0.5, 0.5]
    assert example["messages"] == [[{"role": "user", "content": "hi"}]] * 2


@pytest.mark.parametrize("path", ["/scored_data", "/scored_data_list"])
def test_a_run_that_has_not_begun_asks_for_the_groups_again(path: str) -> None:
    """Atropos' clients repeat what is answered with 5xx, and drop what is answered with 4xx."""
    api = Api(make_external_run(state=RunState.PENDING))
    response = api.request("POST", path, json=item() if path == "/scored_data" else [item()])
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("state", [RunState.FINISHING, RunState.STOPPING, RunState.FINISHED, RunState.FAILED])
def test_a_run_that_is_over_says_so(state: RunState) -> None:
    api = Api(make_external_run(state=state))
    for method, path, content in (
        ("POST", "/scored_data", item()),
        ("POST", "/scored_data_list", [item()]),
        ("POST", "/register", registration()),
        ("POST", "/register-env", introduction()),
        ("GET", "/status-env", {"env_id": 0}),
        ("GET", "/batch", None),
        ("GET", "/reset_data", None),
    ):
        response = api.request(method, path, json=content)
        assert response.status_code == 410, path
        assert f"is {state}" in response.json()["detail"]
    for path in ("/", "/info", "/status", "/wandb_info", "/latest_example"):
        assert api.get(path)


def test_a_full_queue_is_told_to_come_again() -> None:
    limits = {"batch.batch_size": 4, "batch.max_queued_rollouts": 4}
    api = Api(make_run(preset="external-trainer", state=RunState.RUNNING, overrides=limits))
    for _ in range(2):
        api.submit()
    response = api.request("POST", "/scored_data", json=item())
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert "4 rollouts wait" in response.json()["detail"]
    assert ScoredGroup.objects.count() == 2


def test_a_run_has_a_largest_number_of_environments() -> None:
    api = Api()
    api.start()
    for number in range(100):
        RunEnvironment.objects.create(run=api.run, name=f"other-{number}")
    assert api.request("POST", "/scored_data", json=item()).status_code == 422
    assert api.request("POST", "/register-env", json=introduction()).status_code == 422


def test_one_run_shows_nothing_of_another() -> None:
    first, second = Api(), Api()
    first.start()
    first.register_env()
    first.submit(env_id=0)
    assert second.get("/status") == {"current_step": 0, "queue_size": 0}
    assert second.get("/latest_example")["tokens"] == []
    assert second.get("/info")["batch_size"] == -1
    assert second.post("/disconnect-env", {"env_id": 0})["status"] == "failure"
    assert second.request("GET", "/reset_data").status_code == 200
    assert ScoredGroup.objects.get().state == GroupState.READY
