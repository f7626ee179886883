"""The checker finds what it is there for: every planted fault by name, and in a true history nothing."""

from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from django.utils import timezone

from rollouts.formats.batch_body import encode
from rollouts.models import Batch, Lease
from rollouts.services.runs import life
from rollouts.services.transitions import record_creation
from rollouts.states import GroupState, RunState
from tests import factories
from tests.chaos import history
from tests.chaos.checker import RULES
from tests.chaos.history import Act, Outcome
from tests.chaos.load import make_group, sent
from tests.chaos.world import TERM_S, AtroposWorld, Scene, World

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_true_history_is_clean_and_says_something(world: World) -> None:
    calls = history.read(world.directory, world.run.key)
    assert [call.outcome for call in calls if call.asked.act is Act.REGISTER] == [Outcome.OK] * 2
    assert [call.outcome for call in calls if call.asked.act is Act.FETCH].count(Outcome.FAIL) == 1
    acks = [call.asked for call in calls if call.asked.act is Act.ACK and call.outcome is Outcome.OK]
    assert [(ack.step, ack.epoch) for ack in acks] == [(0, 1), (1, 2), (2, 2)]
    assert world.violations() == set()


def forget_group(world: Scene, which: str) -> None:
    for table in ("grouptokens", "rollout"):
        world.sql(f"DELETE FROM rollouts_{table} WHERE group_id = ({which})")
    world.sql(f"DELETE FROM rollouts_scoredgroup WHERE id = ({which})")


def lose_an_acknowledged_group(world: World) -> None:
    forget_group(world, "SELECT id FROM rollouts_scoredgroup WHERE key = 'c1-90'")


def train_a_group_twice(world: World) -> None:
    world.sql("ALTER TABLE rollouts_batchitem DROP CONSTRAINT batch_item_group_trains_once")
    world.sql(
        "INSERT INTO rollouts_batchitem (batch_id, group_id, position, replay, advantages)"
        " SELECT (SELECT id FROM rollouts_batch WHERE step = 1), group_id, 99, 0, advantages FROM rollouts_batchitem"
        " WHERE batch_id = (SELECT id FROM rollouts_batch WHERE step = 0) AND position = 0"
    )


def swap_two_members(world: World) -> None:
    world.sql("ALTER TABLE rollouts_batchitem DROP CONSTRAINT batch_item_group_trains_once")
    world.sql(
        "UPDATE rollouts_batchitem AS mine SET group_id = other.group_id FROM rollouts_batchitem AS other,"
        " rollouts_batch AS a, rollouts_batch AS b WHERE a.id = mine.batch_id AND b.id = other.batch_id"
        " AND mine.position = 0 AND other.position = 0 AND a.step + b.step = 1"
    )


def swap_two_members_and_cover_it_up(world: World) -> None:
    swap_two_members(world)
    for batch in Batch.objects.filter(step__in=[0, 1]):
        body = encode(batch)
        world.sql(
            "UPDATE rollouts_batch SET sha256 = %(sha)s WHERE id = %(id)s", sha=sha256(body).hexdigest(), id=batch.pk
        )


def change_a_hash(world: World) -> None:
    world.sql("UPDATE rollouts_batch SET sha256 = repeat('0', 64) WHERE step = 1")


def flip_a_bit_of(column: str, key: str) -> Callable[[World], None]:
    def flip(world: World) -> None:
        world.sql(
            f"UPDATE rollouts_grouptokens AS t SET {column} = set_byte({column}, 40, get_byte({column}, 40) # 1)"
            " FROM rollouts_scoredgroup AS g WHERE g.id = t.group_id AND g.key = %(key)s",
            key=key,
        )

    flip.__name__ = f"flip_a_bit_of_{column}_of_{key}"
    return flip


def make_a_trained_group_ready_again(world: World) -> None:
    world.sql("UPDATE rollouts_scoredgroup SET state = 'ready' WHERE key = 'c1-0'")


def forget_how_a_group_began(world: World) -> None:
    world.sql(
        "DELETE FROM rollouts_event USING rollouts_scoredgroup AS g"
        " WHERE object_kind = 'scoredgroup' AND object_id = g.id AND from_state = '' AND g.key = 'c1-90'"
    )


def skip_a_step(world: World) -> None:
    world.sql("UPDATE rollouts_batch SET step = 7 WHERE step = 2")


def count_a_step_too_few(world: World) -> None:
    world.sql("UPDATE rollouts_run SET next_step = 2 WHERE id = %(run)s")


def let_a_zombie_write(world: World) -> None:
    world.sql(
        "INSERT INTO rollouts_event (run_id, at, object_kind, object_id, from_state, to_state, reason_code,"
        " reason_params, actor) VALUES (%(run)s, now(), 'checkpoint', 1, '', 'complete', '', '{}', 'trainer:1')"
    )


def serve_a_zombie(world: World) -> None:
    world.remember(Act.FETCH, Outcome.OK, epoch=1, step=3)


def give_an_epoch_twice(world: World) -> None:
    world.remember(Act.REGISTER, Outcome.OK, heard={"epoch": 2})


def forget_an_acknowledged_step(world: World) -> None:
    world.remember(Act.ACK, Outcome.OK, epoch=2, step=3)


def train_what_is_too_old(world: World) -> None:
    world.sql(
        "UPDATE rollouts_rollout AS r SET dispatch_policy_version = 0 FROM rollouts_scoredgroup AS g"
        " WHERE g.id = r.group_id AND g.key = 'c1-4' AND r.index = 0"
    )


def forget_a_lease(world: World) -> None:
    group = factories.make_group(world.run, state=GroupState.PLAYING)
    record_creation([group], run_id=world.run.pk, state=GroupState.PLAYING, actor="driver:gone")
    begun = timezone.now() - timedelta(seconds=31)
    Lease.objects.create(
        group=group, run=world.run, holder="gone", claimed_at=begun, expires_at=begun + timedelta(seconds=TERM_S)
    )


def make_up_a_group(world: World) -> None:
    world.submit_in_secret(make_group(1, 91))


def store_what_was_refused(world: World) -> None:
    world.submit_in_secret(make_group(1, 91))
    world.remember(Act.SUBMIT, Outcome.FAIL, groups=[sent(make_group(1, 91))])


def store_twice_what_was_sent_once(world: World) -> None:
    for key in ("one", "two"):
        world.submit_in_secret(msgspec.structs.replace(make_group(1, 91), key=key))
    world.remember(Act.SUBMIT, Outcome.UNKNOWN, groups=[sent(make_group(1, 91), keyed=False)])


def store_once_what_was_acknowledged_twice(world: World) -> None:
    world.submit_in_secret(make_group(1, 91))
    for _ in range(2):
        world.remember(Act.SUBMIT, Outcome.OK, groups=[sent(make_group(1, 91), keyed=False)])


FAULTS: dict[Callable[[World], None], set[str]] = {
    lose_an_acknowledged_group: {
        "acknowledged_groups_are_stored",
        "every_group_is_in_the_state_of_its_last_event",
        "the_ledger_sums_up",
    },
    train_a_group_twice: {"a_group_trains_in_at_most_one_step", "batches_rebuild_to_their_hash"},
    swap_two_members: {"batches_rebuild_to_their_hash"},
    swap_two_members_and_cover_it_up: {"received_batches_are_stored"},
    change_a_hash: {"batches_rebuild_to_their_hash", "received_batches_are_stored"},
    flip_a_bit_of("token_ids", "c1-0"): {"stored_groups_are_what_was_sent", "batches_rebuild_to_their_hash"},
    flip_a_bit_of("token_ids", "c1-90"): {"stored_groups_are_what_was_sent"},
    flip_a_bit_of("inference_logprobs", "c1-90"): {"stored_groups_are_what_was_sent"},
    make_a_trained_group_ready_again: {
        "every_group_is_in_the_state_of_its_last_event",
        "groups_and_batches_agree",
    },
    forget_how_a_group_began: {"every_group_is_in_the_state_of_its_last_event", "the_ledger_sums_up"},
    skip_a_step: {
        "received_batches_are_stored",
        "acknowledged_steps_are_trained",
        "batches_rebuild_to_their_hash",
        "steps_are_contiguous",
        "trained_rollouts_are_fresh",
    },
    count_a_step_too_few: {"steps_are_contiguous"},
    let_a_zombie_write: {"epochs_do_not_overlap"},
    serve_a_zombie: {"an_epoch_ends_with_the_next_registration"},
    give_an_epoch_twice: {"an_epoch_ends_with_the_next_registration"},
    forget_an_acknowledged_step: {"acknowledged_steps_are_trained"},
    train_what_is_too_old: {"trained_rollouts_are_fresh", "batches_rebuild_to_their_hash"},
    forget_a_lease: {"no_lease_is_older_than_twice_its_term"},
    make_up_a_group: {"stored_groups_are_what_was_sent"},
    store_what_was_refused: {"unknown_groups_are_stored_once_or_not_at_all"},
    store_twice_what_was_sent_once: {"unknown_groups_are_stored_once_or_not_at_all"},
    store_once_what_was_acknowledged_twice: {"acknowledged_groups_are_stored"},
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_by_name_and_nothing_else_is(world: World, plant: Callable[[World], None]) -> None:
    plant(world)
    assert world.violations() == FAULTS[plant]


def test_what_the_store_asks_of_an_ended_run_is_asked_too(world: World) -> None:
    life.end(life.request_stop(world.run, actor="user:ada"), to=RunState.STOPPED)
    assert world.violations() == set()
    world.sql("UPDATE rollouts_scoredgroup SET rollout_count = 5 WHERE key = 'c1-90'")
    assert world.violations() == {"the_invariants_of_an_ended_run_hold"}


@pytest.mark.django_db(transaction=True)
def test_a_true_history_without_keys_and_acknowledgements_is_clean_too(tmp_path: Path) -> None:
    world = AtroposWorld(tmp_path)
    assert world.received[:2] == [batch.sha256 for batch in Batch.objects.order_by("step")]
    assert (world.received[2], Batch.objects.filter(state="trained").count()) == (None, 2)
    assert world.violations() == set()


def lose_a_group_without_a_key(world: AtroposWorld) -> None:
    forget_group(world, "SELECT max(id) FROM rollouts_scoredgroup")


def receive_a_batch_that_is_not_stored(world: AtroposWorld) -> None:
    world.remember(Act.FETCH, Outcome.OK, heard={"sha256": "f" * 64, "markers": [(2, 0)]})


def receive_other_groups_than_are_stored(world: AtroposWorld) -> None:
    world.remember(Act.FETCH, Outcome.OK, heard={"sha256": world.received[0], "markers": [(2, 1), (2, 0)]})


def count_a_batch_that_nobody_received(world: AtroposWorld) -> None:
    world.sql("UPDATE rollouts_batch SET sha256 = repeat('0', 64) WHERE step = 1")


ATROPOS_FAULTS: dict[Callable[[AtroposWorld], None], set[str]] = {
    lose_a_group_without_a_key: {
        "acknowledged_groups_are_stored",
        "every_group_is_in_the_state_of_its_last_event",
        "the_ledger_sums_up",
    },
    receive_a_batch_that_is_not_stored: {"received_batches_are_stored"},
    receive_other_groups_than_are_stored: {"received_batches_are_stored"},
    count_a_batch_that_nobody_received: {
        "received_batches_are_stored",
        "trained_batches_were_received",
        "batches_rebuild_to_their_hash",
    },
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("plant", ATROPOS_FAULTS, ids=lambda plant: plant.__name__)
def test_a_fault_planted_in_such_a_history_is_found_too(tmp_path: Path, plant: Callable[[AtroposWorld], None]) -> None:
    world = AtroposWorld(tmp_path)
    plant(world)
    assert world.violations() == ATROPOS_FAULTS[plant]


def test_every_rule_finds_a_planted_fault() -> None:
    of_ended_runs = {"the_invariants_of_an_ended_run_hold"}
    assert {rule.__name__ for rule in RULES} - of_ended_runs == set().union(*FAULTS.values(), *ATROPOS_FAULTS.values())
