"""Rollouts of several branches, from the door to the trainer, to files and to pages."""

import hashlib
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from django.test import Client

from environments.types import Message, PlayedGroup, PlayedRollout
from rollouts.errors import Invalid
from rollouts.models import GroupTokens, Rollout, Run, Scope
from rollouts.selectors import token_values
from rollouts.services.batches import forming, verification
from rollouts.services.curation import examples, exchange
from rollouts.services.curation.examples import Selection
from rollouts.states import GroupState
from tests.factories import make_user
from tests.rollouts import story
from tests.rollouts.api import Api, make_token
from tests.rollouts.curation.test_exchange import launch, lines, load
from trainers.packing import batch_sequences
from trainers.wire import MSGPACK, TrainingBatch

pytestmark = pytest.mark.django_db

ASKED = Message("user", "a?")
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def branched(reward: float = 1.0, **fields: Any) -> PlayedRollout:
    """Two branches, of three and of four tokens; the first sampled token stands in both, and trains in the first."""
    values: dict[str, Any] = {
        "token_ids": [7, 8, 9, 7, 8, 10, 11],
        "loss_mask": [0, 1, 1, 0, 0, 1, 1],
        "inference_logprobs": [0.0, -0.5, -0.25, 0.0, 0.0, -1.0, -2.0],
        "branch_lengths": [3, 4],
        "earlier_branches": [[ASKED, Message("assistant", "one")]],
        "messages": [ASKED, Message("assistant", "other")],
        "tools": [TOOL],
    }
    return story.rollout(reward, **(values | fields))


def group(key: str = "k", **fields: Any) -> PlayedGroup:
    played = [branched(**fields), story.rollout(0.0, messages=[ASKED, Message("assistant", "no")])]
    return PlayedGroup(environment="reverse_text", problem_key="cat", key=key, rollouts=played)


def fetched(run: Run, epoch: int) -> tuple[forming.Outgoing, TrainingBatch]:
    delivery = forming.fetch(run, epoch=epoch, step=0)
    assert delivery is not None
    return delivery, msgspec.msgpack.decode(delivery.body, type=TrainingBatch)


@pytest.mark.parametrize("is_packed", [False, True])
def test_branches_come_in_over_http_and_go_out_to_the_trainer_as_they_were(is_packed: bool) -> None:
    run, epoch = story.train()
    api = Api(make_token([Scope.SUBMIT]))
    for key in ("a", "b"):
        sent = msgspec.to_builtins(group(key))
        if is_packed:
            for each in sent["rollouts"]:
                for name, dtype in (("token_ids", "<u4"), ("loss_mask", "u1"), ("inference_logprobs", "<f4")):
                    each[name] = np.array(each[name], dtype).tobytes()
        kind = {"content_type": MSGPACK} if is_packed else {}
        body = msgspec.msgpack.encode(sent) if is_packed else sent
        assert api.post(f"runs/{run.key}/groups", body, **kind).status_code == 201
    delivery, batch = fetched(run, epoch)
    assert [rollout.branch_lengths for rollout in batch.rollouts] == [[3, 4], []] * 2
    assert hashlib.sha256(delivery.body).hexdigest() == delivery.sha256
    sequences = batch_sequences(batch, 8)[:3]
    assert [sequence.token_ids_T.tolist() for sequence in sequences] == [[7, 8, 9], [7, 8, 10, 11], [65, 66, 67, 68]]
    assert [sequence.trained_T.tolist() for sequence in sequences[:2]] == [
        [False, True, True],
        [False, False, True, True],
    ]
    assert sequences[0].advantage == sequences[1].advantage != sequences[2].advantage
    stored = Rollout.objects.filter(group__key="a").order_by("index").first()
    assert stored is not None
    assert (stored.token_count, stored.trained_token_count) == (7, 4)
    assert [[each["content"] for each in branch] for branch in stored.earlier_branches] == [["a?", "one"]]


def test_a_group_without_branches_stores_and_sends_what_it_did_before() -> None:
    run, epoch = story.train()
    story.submit(run, [story.scored(str(number)) for number in range(2)], actor="token:t")
    delivery, _ = fetched(run, epoch)
    assert set(GroupTokens.objects.values_list("branch_lengths", flat=True)) == {None}
    assert b"branch" not in delivery.body


def test_one_branch_that_is_named_is_none() -> None:
    run, _ = story.train()
    plain = story.scored("k")
    plain.rollouts[0].branch_lengths = [4]
    story.submit(run, [plain], actor="token:t")
    assert GroupTokens.objects.get().branch_lengths is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"branch_lengths": [3, 5]}, "branch_lengths"),
        ({"branch_lengths": [7, 0]}, "branch_lengths"),
        ({"branch_lengths": [-1, 8]}, "branch_lengths"),
        ({"branch_lengths": []}, "earlier_branches"),
        ({"branch_lengths": [3, 2, 2]}, "earlier_branches"),
    ],
)
def test_branches_that_do_not_fit_are_refused_by_name(fields: dict[str, Any], field: str) -> None:
    run, _ = story.train()
    with pytest.raises(Invalid) as refused:
        story.submit(run, [group(**fields)], actor="token:t")
    assert [fault.loc[-1] for fault in refused.value.faults] == [field]
    assert not GroupTokens.objects.exists()


def test_a_failed_rollout_beside_branches_has_none() -> None:
    run, _ = story.train()
    failed = story.rollout(None, token_ids=[], loss_mask=[], inference_logprobs=[])
    played = PlayedGroup(environment="reverse_text", problem_key="cat", rollouts=[failed, branched(), branched(0.0)])
    story.submit(run, [played], actor="token:t")
    assert np.frombuffer(GroupTokens.objects.get().branch_lengths, "<u4").tolist() == [3, 4, 3, 4]


def test_the_same_key_with_other_branches_is_another_group() -> None:
    run, _ = story.train()
    story.submit(run, [group()], actor="token:t")
    story.submit(run, [group()], actor="token:t")
    with pytest.raises(Exception, match="was used for another group"):
        story.submit(run, [group(branch_lengths=[4, 3])], actor="token:t")


def test_the_answer_that_begins_the_next_branch_is_no_answer_of_the_environment() -> None:
    """The last token of one branch is sampled, the first of the next is not: nobody spoke in between."""
    run, _ = story.train(algorithm__terms={"echo": 0.1}, algorithm__filter_zero_advantage=True)
    alone = {"token_ids": [7, 8, 7, 9], "loss_mask": [0, 1, 0, 1], "inference_logprobs": [0.0, -1.0, 0.0, -1.0]}
    same = [branched(1.0, **alone, branch_lengths=[2, 2]) for _ in range(2)]
    story.submit(run, [PlayedGroup(environment="reverse_text", problem_key="cat", key="k", rollouts=same)], actor="t:t")
    assert GroupTokens.objects.get().group.state == GroupState.FILTERED


def test_a_file_of_groups_keeps_branches_and_tools() -> None:
    run = launch()
    story.submit(run, [group()], actor="token:t")
    [line] = exchange.export_groups(run)
    item = json.loads(line)
    assert item["tokens"] == [[7, 8, 9], [7, 8, 10, 11], [65, 66, 67, 68]]
    assert item["scores"] == [1.0, 1.0, 0.0]
    assert [row[-1]["content"] for row in item["messages"]] == ["one", "other", "no"]
    other = launch()
    totals, bad = load(other, lines([line]))
    assert (totals.stored, bad) == (1, [])
    assert list(exchange.export_groups(other)) == [line]
    columns = ("token_count", "trained_token_count", "messages", "earlier_branches", "tools", "reward")
    first, second = (
        list(Rollout.objects.filter(group__run=each).order_by("index").values(*columns)) for each in (run, other)
    )
    assert first == second


@pytest.mark.parametrize(
    ("added", "why"),
    [
        ({"branches": [2, 2]}, "do not add up"),
        ({"branches": [3, 0]}, "do not add up"),
        ({"branches": [1, 2]}, "different scores"),
        ({"branches": "two"}, "not what export-groups writes"),
        ({"tools": [[]]}, "tools of 1 rollouts"),
        ({"tools": [[], [], [{"a": "\0"}]]}, "tools"),
    ],
)
def test_additions_that_do_not_fit_make_a_bad_line(added: dict[str, Any], why: str) -> None:
    run = launch()
    item = {"tokens": [[7, 8], [7, 9], [7, 10]], "masks": [[-100, 8], [-100, 9], [-100, 10]], "scores": [1.0, 1.0, 0.0]}
    totals, bad = load(run, lines([item | {"rollyard": added}]))
    assert (totals.stored, totals.bad) == (0, 1)
    assert why in bad[0]


def test_an_example_is_written_of_each_branch_and_tokens_where_there_are_no_messages() -> None:
    run = launch()
    silent = group("silent", messages=[], earlier_branches=[])
    story.submit(run, [group(), silent], actor="token:t")
    said = [json.loads(line) for line in examples.export_examples(run, Selection())]
    assert [(each.get("messages", [{}])[-1].get("content"), each["branch"]) for each in said] == [
        ("one", 0),
        ("other", 1),
        (None, 0),
        (None, 1),
    ]
    assert [each["token_ids"] for each in said[2:]] == [[7, 8, 9], [7, 8, 10, 11]]
    assert [each["loss_mask"] for each in said[2:]] == [[0, 1, 1], [0, 0, 1, 1]]


def test_batches_of_branches_verify_and_their_pages_tell_them_apart(client: Client) -> None:
    run, epoch = story.train()
    story.submit(run, [group(key) for key in ("a", "b")], actor="token:t")
    delivery, batch = fetched(run, epoch)
    story.ack(run, epoch, 0, delivery.sha256, [story.seen(rollout) for rollout in batch.rollouts])
    assert [verdict.fault for verdict in verification.verify_batches(run)] == [""]
    client.force_login(make_user())
    row = token_values.of_step(run, 0)[0]
    assert token_values.get(run, row.pk).branch_lengths == [3, 4]
    page = client.get(f"/runs/{run.key}/groups/a/").content.decode()
    assert "Branch 1 of 2" in page
    assert "Branch 2 of 2" in page
    assert "one" in page
    tokens = client.get(f"/runs/{run.key}/tokens/{row.pk}/?from=0").content.decode()
    assert tokens.count('class="branch-mark"') == 2
    assert "branch 2 of 2" in tokens
