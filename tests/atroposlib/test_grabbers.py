"""`atropos-sft-gen` and `atropos-dpo-gen` reset the server they are pointed at. Here that destroys nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.atroposlib.parties import (
    GROUP_SIZE,
    Inference,
    grab,
    launch,
    running_environment,
    wait_for_stock,
)
from tests.atroposlib.tables import JsonObject, batches, in_state, states, stored
from tests.e2e.yard import Yard
from tests.lanes import long_lane
from tests.rollouts.doors.atropos.api import item, registration, tags
from trainers.model.tiny import tiny_tokenizer

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.vllm,
    pytest.mark.slow,
    long_lane("the same calls, in this order, are in tests/rollouts/doors/atropos/test_resets.py"),
]

TASKS_PER_STEP = 2
SFT_BATCH, DPO_BATCH = TASKS_PER_STEP * GROUP_SIZE, 8 * GROUP_SIZE
"""Sequences per batch that the tools register with. The environment goes by the size it heard of first: the second is
more than it would let wait if it were not told lengths in batches of that size."""


class Story(NamedTuple):
    """One environment, three tools in turn on its run, and what each of them found and wrote. It was stopped since, so
    that the tables stand still."""

    run: str
    stocks: list[set[int]]
    """Groups that waited before the second tool and before the third."""
    left: set[int]
    """Groups that wait after the last tool, from the same process of the environment."""
    sft: list[JsonObject]
    dpo: list[JsonObject]
    conversations: list[JsonObject]
    clients: list[tuple[int, int, str, bool]]
    """Attempt, id, name and whether it is connected, of each time that the environment is on record, as it ran."""
    bystander: httpx.Client
    """Trainer of another run, whose groups were there before all this."""


@pytest.fixture(scope="module")
def story(
    yard: Yard, inference: Inference, atropos_bin: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("grabbing")
    sft_options = ["--num-seqs-to-save", "8", "--tasks-per-step", str(TASKS_PER_STEP)]
    run, url = launch(yard)
    with httpx.Client(base_url=launch(yard)[1], timeout=30) as bystander:
        bystander.post("/register", json=registration()).raise_for_status()
        for tag in (1, 2, 3):
            bystander.post("/scored_data", json=item(tag=tag)).raise_for_status()

        with running_environment(atropos_bin, url, inference, directory) as environment:
            sft = grab(atropos_bin / "atropos-sft-gen", url, inference.model, directory / "sft.jsonl", *sft_options)
            stocks = [wait_for_stock(yard, run, environment)]
            dpo = grab(
                atropos_bin / "atropos-dpo-gen",
                url,
                inference.model,
                directory / "dpo.jsonl",
                *["--num-seqs-to-save", "6", "--minimum-score-diff-max-min", "0.0"],
            )
            stocks.append(wait_for_stock(yard, run, environment))
            conversations = grab(
                atropos_bin / "atropos-sft-gen",
                url,
                inference.model,
                directory / "conversations.jsonl",
                *[*sft_options, "--save-messages"],
            )
            left = wait_for_stock(yard, run, environment)
            clients = yard.sql(
                "SELECT a.number, c.index, c.wandb_name, c.state FROM rollouts_environmentclient AS c"
                " JOIN rollouts_attempt AS a ON a.id = c.attempt_id JOIN rollouts_run AS r ON r.id = a.run_id"
                " WHERE r.key = %s ORDER BY a.number",
                run,
            )
        yield Story(run, stocks, left, sft, dpo, conversations, clients, bystander)


def texts(yard: Yard, run: str, wanted: str) -> set[str]:
    """Rollouts of the groups in this state, special tokens and all."""
    groups, tokenizer = stored(yard, run), tiny_tokenizer()
    return {str(tokenizer.decode(row)) for group in in_state(yard, run, wanted) for row in groups[group].rows()}


def test_the_tools_write_what_the_environment_sent(yard: Yard, story: Story) -> None:
    known = texts(yard, story.run, "trained")
    assert len(story.sft) >= 8
    for line in story.sft:
        assert set(line) == {"prefix", "completion", "score"}
        assert line["prefix"] + line["completion"] in known
    assert len(story.dpo) >= 6
    for line in story.dpo:
        assert set(line) == {"prefix", "pos", "score", "neg"}
        assert {line["prefix"] + line["pos"], line["prefix"] + line["neg"]} <= known
        assert line["pos"] != line["neg"]
    assert len(story.conversations) >= 8
    for line in story.conversations:
        assert [message["role"] for message in line["messages"]] == ["user", "assistant"]


def test_what_waited_when_a_tool_reset_the_server_is_archived_and_says_so(
    yard: Yard, story: Story, visitor: httpx.Client
) -> None:
    for number, stock in enumerate(story.stocks, 1):
        reasons = yard.sql(
            "SELECT DISTINCT state, reason_code, reason_params FROM rollouts_scoredgroup WHERE id = ANY(%s)",
            sorted(stock),
        )
        assert reasons == [("surplus", "reset", {"number": number})]
    groups = states(yard, story.run)
    assert groups.keys() <= stored(yard, story.run).keys(), "a group lost its tokens"
    assert set(groups.values()) <= {"trained", "batched", "surplus", "ready"}
    page = visitor.get(f"/runs/{story.run}/").text
    assert "archived by a reset of attempt 1" in page


def test_batches_that_reached_a_tool_count_as_trained_when_the_next_one_resets(yard: Yard, story: Story) -> None:
    attempts = yard.sql(
        "SELECT a.number, a.batch_size, a.first_step, a.closed_at IS NOT NULL FROM rollouts_attempt AS a"
        " JOIN rollouts_run AS r ON r.id = a.run_id WHERE r.key = %s ORDER BY a.number",
        story.run,
    )
    assert [(number, size, is_closed) for number, size, _, is_closed in attempts] == [
        (1, SFT_BATCH, True),
        (2, DPO_BATCH, True),
        (3, SFT_BATCH, False),
    ]
    third = attempts[2][2]
    formed, groups = batches(yard, story.run), stored(yard, story.run)
    assert [step for step, _, _ in formed] == list(range(len(formed)))
    assert {state for step, state, _ in formed if step < third} == {"trained"}
    sizes = [sum(len(groups[group].lengths) for group in items) for _, _, items in formed]
    assert sizes[0] == SFT_BATCH
    assert sizes[attempts[1][2]] == DPO_BATCH
    assert sizes[third] == SFT_BATCH
    items = [group for _, _, items in formed for group in items]
    assert len(set(items)) == len(items), "a group is in two steps"


def test_the_environment_lives_on_under_its_old_id(yard: Yard, story: Story) -> None:
    assert story.clients == [(number, 0, "letters_0", "connected") for number in (1, 2, 3)]
    assert story.left
    assert {group.environment for group in stored(yard, story.run).values()} == {"letters"}


def test_another_run_notices_nothing(story: Story) -> None:
    assert story.bystander.get("/info").json() == {"batch_size": 4, "max_token_len": 512}
    assert story.bystander.get("/status").json() == {"current_step": 0, "queue_size": 3}
    assert tags(story.bystander.get("/batch").json()["batch"]) == [1, 2]
