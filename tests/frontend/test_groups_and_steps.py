"""A group tells which step it trained in; a step tells which groups it was trained on."""

import pytest
from django.test import Client
from django.urls import reverse

from rollouts.formats.atropos.extras import Extras
from rollouts.models import Batch, BatchItem, GroupTokens, Run, ScoredGroup
from rollouts.states import BatchState, GroupState
from tests import store
from tests.factories import make_batch, make_group, make_metrics, make_run


def group_page(client: Client, run: Run, group: ScoredGroup) -> str:
    response = client.get(reverse("group", args=[run.key, group.key]))
    assert response.status_code == 200
    return response.content.decode()


def test_a_trained_group_shows_its_step_lag_and_advantages(client: Client) -> None:
    run = make_run(next_step=6)
    group = make_group(run, rewards=[1.0, 0.0, 0.0, 0.0], version=3)
    make_batch(run, 5, [group])
    page = group_page(client, run, group)
    assert reverse("step", args=[run.key, 5]) in page
    assert "2 steps" in page
    assert "+1.73" in page  # (1 - 0.25) / sqrt(3/16)
    assert "1 − 0.25 = +0.75, ÷ 0.433 = +1.73" in page


def test_a_group_of_equal_rewards_is_said_to_teach_nothing(client: Client) -> None:
    run = make_run()
    assert "carries no gradient." in group_page(client, run, make_group(run, rewards=[0.5, 0.5]))


def test_a_group_of_equal_rewards_is_not_said_to_teach_nothing_where_the_loss_trains_on_it(client: Client) -> None:
    run = make_run(overrides={"algorithm.loss.type": "dppo"})
    assert "no gradient but that of algorithm.loss.kl_tau" in group_page(client, run, make_group(run, rewards=[1, 1]))


def test_advantages_per_token_are_not_explained_by_rewards(client: Client) -> None:
    run = make_run()
    group = make_group(run, rewards=[1.0, 1.0])
    number = b"\0\0\0\0"
    GroupTokens.objects.create(
        group=group, lengths=number, token_ids=number, loss_mask=b"\1", inference_logprobs=number, advantages=number
    )
    assert "an advantage for each token" in group_page(client, run, group)


@pytest.mark.parametrize("trained", [None, [0.0, -1.0], [1.0, -1.0]])
def test_an_advantage_that_the_environment_set_to_zero_is_said_to_be_that(
    client: Client, trained: list[float] | None
) -> None:
    run = make_run(next_step=6)
    group = make_group(run, rewards=[1.0, 0.0])
    asked = Extras(json={"overrides": b'[{"set_advantage_to_zero": true}, {}]'}).pack()
    number = b"\0\0\0\0"
    GroupTokens.objects.create(
        group=group, lengths=number, token_ids=number, loss_mask=b"\1", inference_logprobs=number, extras=asked
    )
    if trained:
        make_batch(run, 5, [group])
        with store.beyond_rights():
            BatchItem.objects.update(advantages=trained)
    page = group_page(client, run, group)
    assert "0 − 0.5 = −0.5, ÷ 0.5 = −1" in page
    is_heeded = trained != [1.0, -1.0]  # a batch of before
    assert ("set to 0 by the environment; its reward counts for the others" in page) is is_heeded
    assert ("1 − 0.5 = +0.5" in page) is not is_heeded


def test_a_group_names_the_version_of_its_environment_if_it_is_known(client: Client) -> None:
    run = make_run()
    group = make_group(run, rewards=[1.0, 0.0])
    assert "version" not in group_page(client, run, group)
    group.environment_version = "2024.1<b>"
    with store.beyond_rights():
        group.save()
    assert "version 2024.1&lt;b&gt;" in group_page(client, run, group)


def test_a_group_outside_any_batch_shows_what_its_advantages_would_be(client: Client) -> None:
    run = make_run()
    page = group_page(client, run, make_group(run, rewards=[1.0, 0.0]))
    assert "In no batch" in page
    assert "+1" in page


def test_a_failed_member_has_its_error_and_no_advantage(client: Client) -> None:
    run = make_run()
    page = group_page(client, run, make_group(run, rewards=[1.0, 0.0, None]))
    assert "ReadTimeout: no answer in 60 s" in page
    assert "failed: no reward, and not trained on" in page


@pytest.mark.parametrize(
    ("overrides", "sentence", "line"),
    [
        ({"algorithm.advantage": "mean"}, "reward − 0.25, the group", "1 − 0.25 = +0.75"),
        ({"algorithm.loss.type": "rloo"}, "the mean of the other members", "0 − 0.333 = −0.333"),
        ({"algorithm.loss.type": "opo"}, "weighted by trained tokens", "1 − 0.4 = +0.6"),
        ({"algorithm.advantage": "max_rl"}, "divided by that mean", "1 − 0.25 = +0.75, ÷ 0.25 = +3"),
        ({"environments.0.advantage": "max_rl"}, "divided by that mean", "1 − 0.25 = +0.75, ÷ 0.25 = +3"),
        ({"algorithm.advantage": "none"}, "there is no baseline", "+1"),
        ({"algorithm.loss.type": "distill"}, "distill does not look at advantages", "+1"),
    ],
)
def test_every_advantage_is_explained_by_its_own_arithmetic(
    client: Client, overrides: dict[str, str], sentence: str, line: str
) -> None:
    run = make_run(overrides=overrides)
    page = group_page(
        client, run, make_group(run, rewards=[1.0, 0.0, 0.0, 0.0], completions=["seven l", "abc", "abc", "abc"])
    )
    assert sentence in page
    assert line in page


def test_a_member_that_was_cut_off_and_masked_is_said_to_count_for_the_others(client: Client) -> None:
    run = make_run(overrides={"algorithm.corrections.mask_overlong": True})
    group = make_group(run, rewards=[1.0, 0.0], stop_reasons=["length", "stop"])
    assert "not trained on; its reward counts for the others" in group_page(client, run, group)


def test_the_shared_prompt_is_shown_once(client: Client) -> None:
    run = make_run()
    page = group_page(client, run, make_group(run, rewards=[1.0, 0.0, 0.5], prompt="Reverse: lantern"))
    assert page.count("Reverse: lantern") == 1


def test_a_group_that_is_being_played_says_so(client: Client) -> None:
    run = make_run()
    assert "being played right now" in group_page(client, run, make_group(run, state=GroupState.PLAYING))


def test_a_step_lists_its_members_in_order_with_lag_and_hash(client: Client) -> None:
    run = make_run(next_step=6)
    groups = [make_group(run, version=4), make_group(run, version=5)]
    batch = make_batch(run, 5, groups)
    make_metrics(run, "loss/mean", [0.25], first_step=5)
    response = client.get(reverse("step", args=[run.key, 5]))
    page = response.content.decode()
    assert [(member.key, member.lag) for member in response.context["step"].members] == [
        (groups[0].key, 1),
        (groups[1].key, 0),
    ]
    assert batch.sha256 in page
    assert "loss/mean" in page
    assert "Step 4" in page
    assert "Step 6" not in page


def test_a_metric_that_is_called_as_a_method_of_mappings_is_shown_like_any_other(client: Client) -> None:
    run = make_run(next_step=6)
    group = make_group(run, version=5)
    make_batch(run, 5, [group])
    make_metrics(run, "items", [7.5], first_step=5)
    with store.beyond_rights():
        group.rollouts.update(metrics={"items": 3.25, "values": 1.0})
    assert "<span>items 3.25</span>" in group_page(client, run, group)
    assert "7.5" in client.get(reverse("step", args=[run.key, 5])).content.decode()


def test_a_group_that_names_the_version_its_step_makes_has_no_lag(client: Client) -> None:
    run = make_run(next_step=6)
    group = make_group(run, version=6)
    make_batch(run, 5, [group])
    [member] = client.get(reverse("step", args=[run.key, 5])).context["step"].members
    assert member.lag == 0
    assert "0 steps" in group_page(client, run, group)


def test_a_replayed_group_and_the_steps_that_trained_it_lead_to_each_other(client: Client) -> None:
    source, target = make_run(next_step=1), make_run(next_step=8)
    group = make_group(source)
    original = make_batch(source, 0, [group])
    repeated = make_batch(target, 7, [])
    with store.beyond_rights():
        Batch.objects.filter(pk=repeated.pk).update(replay_of=original)
    BatchItem.objects.create(batch=repeated, group=group, position=0, replay=1, advantages=[0.0, 0.0])
    step = " ".join(client.get(reverse("step", args=[target.key, 7])).content.decode().split())
    assert f'href="{reverse("group", args=[source.key, group.key])}"' in step
    assert "<dt>Worst lag</dt> <dd> – </dd>" in step  # its versions are those of another run
    of_source = reverse("step", args=[source.key, 0])
    assert of_source in group_page(client, source, group)
    assert f'href="{of_source}"' in client.get(reverse("run-rollouts", args=[source.key])).content.decode()


def test_a_step_links_to_the_next_one_that_has_a_batch(client: Client) -> None:
    run = make_run(next_step=1)
    make_batch(run, 0, [make_group(run)])
    make_batch(run, 1, [make_group(run)], state=BatchState.DELIVERED)
    page = client.get(reverse("step", args=[run.key, 0])).content.decode()
    assert reverse("step", args=[run.key, 1]) in page


def test_a_step_without_a_batch_is_not_found_and_says_why(client: Client) -> None:
    response = client.get(reverse("step", args=[make_run().key, 3]))
    assert response.status_code == 404
    assert "has no batch for step 3 yet" in response.content.decode()


def test_a_group_of_another_run_is_not_found(client: Client) -> None:
    group = make_group(make_run())
    assert client.get(reverse("group", args=[make_run().key, group.key])).status_code == 404
