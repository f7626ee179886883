"""An unmodified environment plays against vLLM, an unmodified trainer trains, and the run between them is complete."""

import math
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest

from tests.atroposlib.parties import (
    GROUP_SIZE,
    WORKERS,
    Inference,
    launch,
    running_environment,
    train,
    wait_for_stock,
)
from tests.atroposlib.tables import JsonObject, batches, in_state, states, stored
from tests.e2e.yard import Yard

pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.slow]

BATCH_SIZE = 2 * GROUP_SIZE
BATCHES_AHEAD = 3
STEPS = 5
IGNORED = -100


class Story(NamedTuple):
    """What the parties of a run saw of it."""

    run: str
    sent: list[JsonObject]
    """Groups as the environment's client package wrote them down before it sent them."""
    steps: list[JsonObject]
    """What the trainer said of each step."""


@pytest.fixture(scope="module")
def story(yard: Yard, inference: Inference, atropos_bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The environment comes first and waits, the trainer registers, trains and leaves, the environment goes on."""
    run, url = launch(yard)
    directory = tmp_path_factory.mktemp("feeding")
    with running_environment(atropos_bin, url, inference, directory, batches_ahead=BATCHES_AHEAD) as environment:
        steps = train(url, inference.model, batch_size=BATCH_SIZE, steps=STEPS)
        wait_for_stock(yard, run, environment)
    return Story(run, environment.sent(), steps)


def flat(rows: list[list[int]]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(rows))


def shown(message: JsonObject) -> JsonObject:
    """As the tables have it: a model that was never trained also says what no text in PostgreSQL may contain."""
    return message | {"content": message["content"].replace("\0", "\N{REPLACEMENT CHARACTER}")}


def test_every_group_is_stored_once_and_token_for_token_as_the_environment_sent_it(yard: Yard, story: Story) -> None:
    groups = stored(yard, story.run)
    assert len(groups) >= len(story.steps) * BATCH_SIZE // GROUP_SIZE + 1
    assert len({tuple(group.token_ids) for group in groups.values()}) == len(groups)
    sent = {flat(each["tokens"]): each for each in story.sent}
    for group in groups.values():
        original = sent[tuple(group.token_ids)]
        assert group.environment == "letters"
        assert group.lengths == [len(row) for row in original["tokens"]]
        labels, tokens = flat(original["masks"]), group.token_ids
        assert group.loss_mask == [label != IGNORED for label in labels]
        assert all(label in (IGNORED, token) for label, token in zip(labels, tokens, strict=True))
        logprobs = np.array(flat(original["inference_logprobs"]), np.float32)
        assert (logprobs <= 0).tolist() == group.loss_mask
        assert (group.inference_logprobs == np.where(group.loss_mask, logprobs, 0)).all()
        assert group.rewards == original["scores"]
        assert group.messages == [[shown(each) for each in row] for row in original["messages"]]


def test_what_is_not_stored_was_on_its_way_when_the_environment_was_stopped(yard: Yard, story: Story) -> None:
    """It writes a group down and then sends it; what it cancels because enough is waiting, it had not written yet."""
    assert 0 <= len(story.sent) - len(states(yard, story.run)) <= WORKERS


def test_pages_show_the_groups_like_those_of_any_run(yard: Yard, story: Story, visitor: httpx.Client) -> None:
    newest, group = list(stored(yard, story.run).items())[-1]
    prompt = group.messages[0][0]["content"]
    page = visitor.get(f"/runs/{story.run}/rollouts/").text
    assert prompt in page
    assert "letters" in page
    [(key,)] = yard.sql("SELECT key FROM rollouts_scoredgroup WHERE id = %s", newest)
    assert prompt in visitor.get(f"/runs/{story.run}/groups/{key}/").text
    for path in ("", "steps/0/", "events/", "connect/"):
        assert visitor.get(f"/runs/{story.run}/{path}").status_code == 200, path


def test_the_trainer_trains_on_finite_losses(story: Story) -> None:
    assert len(story.steps) >= STEPS
    assert all(math.isfinite(step["loss"]) for step in story.steps)


def test_what_the_trainer_got_is_trained_in_its_order_and_every_group_at_most_once(yard: Yard, story: Story) -> None:
    formed, groups = batches(yard, story.run), stored(yard, story.run)
    assert [step for step, _, _ in formed] == [each["step"] for each in story.steps]
    *before, last = [state for _, state, _ in formed]
    assert set(before) == {"trained"}
    # A trainer that asks for more within the moment in which an arrival is written down has not acknowledged it yet.
    assert last in {"trained", "delivered"}
    for (_, _, items), step in zip(formed, story.steps, strict=True):
        assert [groups[group].rows() for group in items] == step["tokens"]
        assert sum(len(groups[group].lengths) for group in items) == BATCH_SIZE
    given = [group for _, _, items in formed for group in items]
    assert len(set(given)) == len(given)
    assert in_state(yard, story.run, "trained") | in_state(yard, story.run, "batched") == set(given)
    assert set(states(yard, story.run).values()) <= {"trained", "batched", "ready"}


def test_the_environments_back_pressure_works_on_what_the_run_tells_it(yard: Yard, story: Story) -> None:
    assert len(in_state(yard, story.run, "ready")) <= BATCHES_AHEAD * BATCH_SIZE // GROUP_SIZE + WORKERS
