"""Hold a run against the promises: what its clients were told (`history.py`) and what its tables hold.

Call it when nothing changes any more. Every rule is a function named after the promise; it yields what breaks it.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rollouts.models import Run
from tests.chaos import client_rules, store_rules
from tests.chaos.evidence import Evidence
from tests.chaos.history import Call


class Violation(NamedTuple):
    """A promise that was broken."""

    rule: str
    about: str
    """The group, step or epoch."""
    detail: str


RULES: tuple[Callable[[Evidence], Iterator[tuple[str, str]]], ...] = (
    client_rules.acknowledged_groups_are_stored,
    client_rules.unknown_groups_are_stored_once_or_not_at_all,
    client_rules.stored_groups_are_what_was_sent,
    client_rules.received_batches_are_stored,
    client_rules.trained_batches_were_received,
    client_rules.acknowledged_steps_are_trained,
    client_rules.an_epoch_ends_with_the_next_registration,
    store_rules.every_group_is_in_the_state_of_its_last_event,
    store_rules.the_ledger_sums_up,
    store_rules.a_group_trains_in_at_most_one_step,
    store_rules.groups_and_batches_agree,
    store_rules.batches_rebuild_to_their_hash,
    store_rules.steps_are_contiguous,
    store_rules.epochs_do_not_overlap,
    store_rules.trained_rollouts_are_fresh,
    store_rules.no_lease_is_older_than_twice_its_term,
    store_rules.the_invariants_of_an_ended_run_hold,
)


def check(run: Run, calls: list[Call]) -> list[Violation]:
    """Every violation, in the order of the rules."""
    evidence = Evidence(run, calls)
    return [Violation(rule.__name__, about, detail) for rule in RULES for about, detail in rule(evidence)]
