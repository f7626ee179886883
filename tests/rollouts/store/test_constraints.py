"""The database itself refuses rows that make no sense, whoever writes them."""

from typing import Any

import msgspec
import pytest
from django.db import IntegrityError, connection, transaction

from rollouts.models import Batch, BatchItem, Evaluation, Lease, MetricPoint, PolicyVersion, Rollout, Run, ScoredGroup
from rollouts.services.batches import forming
from rollouts.services.runs import token_values
from tests import store
from tests.rollouts import story
from trainers.wire import TrainingBatch

pytestmark = pytest.mark.django_db

NONSENSE = [
    ("run", "state = 'lost'", "run_state_known"),
    ("run", "state = ''", "run_state_known"),
    ("run", "state = 'finished'", "run_finished_at_in_terminal_states"),
    ("run", "finished_at = now()", "run_finished_at_in_terminal_states"),
    ("run", "kind = 'sweep'", "run_kind_known"),
    ("run", "next_step = max_steps + 1", "run_steps_within_plan"),
    ("run", "next_step = -1", "next_step"),
    ("run", "epoch = -1", "epoch"),
    ("run", "live_version = -2", "run_live_version_from_none"),
    ("runenvironment", "weight = 0", "environment_weight_positive"),
    ("runenvironment", "weight = 'NaN'", "environment_weight_positive"),
    ("runenvironment", "weight = 'Infinity'", "environment_weight_positive"),
    ("scoredgroup", "state = 'nowhere', settled_at = NULL", "group_state_known"),
    ("scoredgroup", "settled_at = NULL", "group_settled_at_after_playing"),
    ("scoredgroup", "state = 'playing'", "group_settled_at_after_playing"),
    ("scoredgroup", "state = 'evaluated'", "group_evaluated_is_eval"),
    ("scoredgroup", "purpose = 'eval'", "group_evaluation_exactly_for_eval"),
    ("scoredgroup", "purpose = 'fun'", "group_evaluation_exactly_for_eval"),
    ("scoredgroup", "state = 'ready', min_policy_version = NULL", "group_trainable_is_complete"),
    (
        "scoredgroup",
        "state = 'ready', rollout_count = 0, scored_count = NULL, solved_count = NULL",
        "group_trainable_is_complete",
    ),
    ("scoredgroup", "solved_count = scored_count + 1", "group_solves_at_most_what_it_scored"),
    ("scoredgroup", "scored_count = rollout_count + 1", "group_solves_at_most_what_it_scored"),
    ("scoredgroup", "min_policy_version = max_policy_version + 1", "group_versions_ordered"),
    ("scoredgroup", "reward_mean = 'NaN'", "group_reward_mean_finite"),
    ("scoredgroup", "reward_mean = '-Infinity'", "group_reward_mean_finite"),
    ("knownproblem", "pool = 'odd', solve_rate = 0.5, groups = 1", "known_problem_pool_known"),
    ("knownproblem", "pool = 'easy', groups = 1", "known_problem_new_until_scored"),
    ("knownproblem", "pool = 'new', solve_rate = 0.5, groups = 1", "known_problem_new_until_scored"),
    ("knownproblem", "pool = 'hard', solve_rate = -0.5, groups = 1", "known_problem_new_until_scored"),
    ("rollout", "reward = 'NaN'", "rollout_reward_finite"),
    ("rollout", "reward = 'Infinity'", "rollout_reward_finite"),
    ("rollout", "reward = NULL", "rollout_reward_exactly_unless_error"),
    ("rollout", "stop_reason = 'error'", "rollout_reward_exactly_unless_error"),
    ("rollout", "stop_reason = 'bored'", "rollout_stop_reason_known"),
    ("rollout", "trained_token_count = token_count + 1", "rollout_trains_at_most_its_tokens"),
    ("grouptokens", "token_ids = token_ids || '\\x00'::bytea", "tokens_have_one_length"),
    ("grouptokens", "loss_mask = ''", "tokens_have_one_length"),
    ("grouptokens", "inference_logprobs = substring(inference_logprobs FROM 2)", "tokens_have_one_length"),
    ("tokenvalues", "ratios = ''", "token_values_have_one_length"),
    ("tokenvalues", "mask_reasons = mask_reasons || '\\x00'::bytea", "token_values_have_one_length"),
    ("batch", "state = 'eaten', delivered_at = NULL", "batch_state_known"),
    ("batch", "state = 'trained'", "batch_trained_at_exactly_when_trained"),
    ("batch", "trained_at = now()", "batch_trained_at_exactly_when_trained"),
    ("batch", "delivered_at = NULL", "batch_delivered_at_once_delivered"),
    ("policyversion", "state = 'dead'", "policy_version_(state_known|live_was_published)"),
    ("policyversion", "published_at = NULL", "policy_version_live_was_published"),
    ("evaluation", "state = 'done'", "evaluation_finished_at_in_terminal_states"),
    ("evaluation", "reward_mean = 'NaN'", "evaluation_reward_mean_finite"),
    ("evaluation", "min_policy_version = 2, max_policy_version = 1", "evaluation_versions_ordered"),
    ("lease", "expires_at = claimed_at", "lease_expires_after_claim"),
    ("metricpoint", "value = 'NaN'", "metric_point_finite"),
    ("metricpoint", "value = 'Infinity'", "metric_point_finite"),
]


@pytest.fixture
def world() -> Run:
    """A run with a row in every table."""
    pools = [{"name": "reverse_text", "problems": 100, "pools": {}}]
    run, epoch = story.train(evaluation={"problems": 1}, environments=pools)
    evaluation, *others = story.claim(run)
    assert evaluation.split == "eval"
    for each in others[:2]:
        story.settle(each)
    delivery = forming.fetch(run, epoch=epoch, step=0)
    assert delivery is not None
    rollout = msgspec.msgpack.decode(delivery.body, type=TrainingBatch).rollouts[0]
    token_values.store(Batch.objects.get(run=run), [story.seen(rollout)])
    return run


@pytest.mark.parametrize("table", sorted({table for table, _, _ in NONSENSE}))
def test_the_database_refuses_nonsense_in(world: Run, table: str) -> None:
    where = " WHERE settled_at IS NOT NULL" if table == "scoredgroup" else ""
    with store.beyond_rights(), connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM rollouts_{table}{where}")
        assert cursor.fetchone()[0] > 0
        for change, constraint in [(change, name) for each, change, name in NONSENSE if each == table]:
            with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
                cursor.execute(f"UPDATE rollouts_{table} SET {change}{where}")


def duplicate(row: Any, **changes: Any) -> None:
    """Insert the row once more, as another one."""
    row.pk = None
    for name, value in changes.items():
        setattr(row, name, value)
    row._state.adding = True
    row.save(force_insert=True)


ONCE: list[tuple[Any, dict[str, Any], str]] = [
    (Batch, {}, "batch_once_per_step"),
    (BatchItem, {"position": 9}, "batch_item_group_trains_once"),
    (BatchItem, {"replay": 1}, "batch_item_position_once"),
    (ScoredGroup, {}, "group_key_once_per_run"),
    (Rollout, {}, "rollout_index_once_per_group"),
    (PolicyVersion, {}, "policy_version_once_per_run"),
    (PolicyVersion, {"version": 1}, "policy_version_one_live_per_run"),
    (Evaluation, {}, "evaluation_once_per_version"),
    (MetricPoint, {}, "metric_point_once_per_step"),
]


def test_the_database_keeps_one_of_each(world: Run) -> None:
    for model, changes, constraint in ONCE:
        row = model.objects.first()
        assert row is not None
        with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
            duplicate(row, **changes)


def test_a_group_has_at_most_one_lease(world: Run) -> None:
    lease = Lease.objects.first()
    assert lease is not None
    with pytest.raises(IntegrityError, match="rollouts_lease_pkey"), transaction.atomic():
        Lease(group=lease.group, run=world, holder="x", claimed_at=lease.claimed_at, expires_at=lease.expires_at).save(
            force_insert=True
        )


def test_a_group_in_a_batch_cannot_be_deleted(world: Run) -> None:
    group = ScoredGroup.objects.filter(batch_items__isnull=False).first()
    assert group is not None
    with store.beyond_rights(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM rollouts_grouptokens")
        cursor.execute("DELETE FROM rollouts_rollout WHERE group_id = %s", [group.pk])
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        with pytest.raises(IntegrityError, match="rollouts_batchitem"), transaction.atomic():
            cursor.execute("DELETE FROM rollouts_scoredgroup WHERE id = %s", [group.pk])
