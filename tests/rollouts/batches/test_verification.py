"""A batch whose rows were changed is found and named, however it was done; the others are still looked at."""

from collections.abc import Callable

import pytest

from rollouts.models import Batch, BatchEncoding, BatchItem, GroupTokens, Rollout, Run, ScoredGroup
from rollouts.selectors.next_batch import demand_of, look
from rollouts.services.batches import forming
from rollouts.services.batches.verification import verify_batches
from rollouts.services.groups import settling
from tests import store
from tests.rollouts import story

pytestmark = pytest.mark.django_db
EARLIER_SHA256 = "638c5f5976f86f4d49afc28e61b49b5292decf259ce30a11e012f97d8242e7ff"


def trained(steps: int = 3) -> Run:
    run, epoch = story.train(max_steps=steps)
    for step in range(steps):
        story.step(run, epoch, step)
    return run


def differing(run: Run) -> list[int]:
    return [verdict.step for verdict in verify_batches(run) if verdict.fault]


def tokens_of(batch: Batch) -> GroupTokens:
    return GroupTokens.objects.filter(group__batch_items__batch=batch).order_by("pk")[0]


def flip(batch: Batch) -> None:
    tokens = tokens_of(batch)
    tokens.token_ids = b"\1" + bytes(tokens.token_ids)[1:]
    tokens.save()


def shorten(batch: Batch) -> None:
    tokens = tokens_of(batch)
    tokens.lengths = bytes(tokens.lengths)[:-4]
    tokens.save()


def lengthen(batch: Batch) -> None:
    tokens = tokens_of(batch)
    tokens.lengths = b"\xff\xff\xff\x7f" + bytes(tokens.lengths)[4:]
    tokens.save()


def rename(batch: Batch) -> None:
    ScoredGroup.objects.filter(pk=batch.items.get(position=0).group_id).update(key="k")


TAMPERING: dict[str, Callable[[Batch], object]] = {
    "a token": flip,
    "a length missing": shorten,
    "a length too large": lengthen,
    "the arrays gone": lambda batch: tokens_of(batch).delete(),
    "a reward": lambda batch: Rollout.objects.filter(group__batch_items__batch=batch).update(reward=0.125),
    "a rollout gone": lambda batch: Rollout.objects.filter(group__batch_items__batch=batch, index=1).delete(),
    "an advantage": lambda batch: batch.items.update(advantages=[0.5, -0.5]),
    "advantages missing": lambda batch: batch.items.update(advantages=[]),
    "an advantage as text": lambda batch: batch.items.update(advantages=["x", "y"]),
    "the order": lambda batch: batch.items.filter(position=0).update(position=7),
    "an item gone": lambda batch: BatchItem.objects.filter(batch=batch, position=0).delete(),
    "a key": lambda batch: ScoredGroup.objects.filter(batch_items__batch=batch, batch_items__position=0).update(
        key="k"
    ),
    "the hash": lambda batch: Batch.objects.filter(pk=batch.pk).update(sha256="0" * 64),
    "the encoding": lambda batch: Batch.objects.filter(pk=batch.pk).update(encoding="atropos"),
}


def test_every_batch_that_was_ever_formed_has_its_bytes() -> None:
    run = trained()
    assert [(verdict.step, verdict.fault) for verdict in verify_batches(run)] == [(0, ""), (1, ""), (2, "")]
    assert list(verify_batches(story.launch())) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", TAMPERING)
def test_tampering_is_found_and_only_that(name: str) -> None:
    run = trained()
    batch = Batch.objects.get(run=run, step=1)
    with store.beyond_rights():
        TAMPERING[name](batch)
    [verdict] = [verdict for verdict in verify_batches(run) if verdict.fault]
    assert (verdict.batch_id, verdict.step) == (batch.pk, 1)
    assert f"batch {batch.pk} " in verdict.fault


def test_batches_in_the_encoding_of_atropos_are_verified_too() -> None:
    run, _ = story.train()
    story.generate(run)
    formed = forming.form(run, 0, look(run, 0, demand_of(run)), encoding=BatchEncoding.ATROPOS)
    assert isinstance(formed, forming.Outgoing)
    assert formed.body.startswith(b'{"batch":[')
    assert differing(run) == []
    with store.beyond_rights():
        flip(formed.batch)
    assert differing(run) == [0]


def test_a_batch_that_an_earlier_version_formed_keeps_its_bytes() -> None:
    """It printed a float32 as the float64 of the same value."""
    run, _ = story.train()
    played = [story.rollout(reward, inference_logprobs=[0.0, 0.0, -0.7, -0.1]) for reward in (1.0, 0.25)]
    for claim in story.claim(run):
        settling.settle(token=claim.token, problem_key="p", rollouts=played, worker="w")
    old = forming.form(run, 0, look(run, 0, demand_of(run)), encoding=BatchEncoding.ATROPOS_DOUBLES)
    assert isinstance(old, forming.Outgoing)
    assert (old.batch.encoding, old.batch.sha256) == ("atropos", EARLIER_SHA256)
    assert b"[[1.0,1.0,-0.699999988079071,-0.10000000149011612]," in old.body
    assert differing(run) == []
    with store.beyond_rights():
        Batch.objects.filter(run=run).update(encoding=BatchEncoding.ATROPOS)
    assert differing(run) == [0], "today the same rows are other bytes"


def test_a_batch_that_was_formed_but_never_sent_is_looked_at_too() -> None:
    run, epoch = story.train()
    story.generate(run)
    forming.fetch(run, epoch=epoch, step=0)
    with store.beyond_rights():
        Batch.objects.filter(run=run).update(state="formed", delivered_at=None, sha256="1" * 64)
    assert differing(run) == [0]
