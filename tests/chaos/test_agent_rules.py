"""The rules of runs that agents play find what they are there for: planted faults by name, in a true run nothing."""

from dataclasses import replace

import pytest

from tests.chaos.agent_engine import Sample
from tests.chaos.agent_evidence import AgentEvidence, OpenedFromOutside, PlayedEpisode, PlayedTogether, Stretch
from tests.chaos.agent_rules import AGENT_RULES, RESTARTED, UNFINISHED, broken
from tests.chaos.agents import Acknowledged

PROMPT = [1, 2, 3]


def sample(number: int, prompt: list[int]) -> Sample:
    """A reply of two tokens that no other is like."""
    return Sample(prompt, [100 + number, 9], [-number / 8, -0.5])


def stretch(sampled: Sample) -> Stretch:
    """The same, as the store has it."""
    return Stretch(sampled.prompt, sampled.token_ids, sampled.mark)


SAMPLED = tuple(sample(number, PROMPT) for number in range(6))
LATER = sample(6, [*PROMPT, *SAMPLED[0].token_ids, 4])
"""A second turn, after a tool has answered."""
BY_DRIVER = PlayedTogether(
    id=1,
    key="by a driver",
    state="trained",
    is_outside=False,
    rollouts=(
        PlayedEpisode(1.0, stretches=(stretch(SAMPLED[0]), stretch(LATER))),
        PlayedEpisode(0.5, stretches=(stretch(SAMPLED[1]),)),
    ),
    digest="a",
    steps=(0,),
)
FROM_OUTSIDE = PlayedTogether(
    id=2,
    key="mine",
    state="trained",
    is_outside=True,
    rollouts=(
        PlayedEpisode(0.25, stretches=(stretch(SAMPLED[2]),)),
        PlayedEpisode(None, f"Nothing it sampled is known: {RESTARTED}."),
        PlayedEpisode(None, f"The session {UNFINISHED} 3 s."),
    ),
    digest="b",
    steps=(1,),
)
UNPLAYED = PlayedTogether(id=3, key="lost", state="failed", is_outside=False, rollouts=(), digest="")
TRUE = AgentEvidence(
    state="finished",
    groups=(BY_DRIVER, FROM_OUTSIDE, UNPLAYED),
    sessions=(OpenedFromOutside("mine", True, True),) * 3,
    leases=0,
    broken_batches=(),
    acknowledged=(Acknowledged("mine", 0, 0.25), Acknowledged("mine", 1, 0.75)),
    left=(("mine", 2),),
    committed={1: "a", 2: "b"},
    sampled=(*SAMPLED, LATER),
)


def with_group(group: PlayedTogether) -> AgentEvidence:
    """The true run, with another group in place of the one of this number."""
    return replace(TRUE, groups=tuple(group if each.id == group.id else each for each in TRUE.groups))


def with_rollout(group: PlayedTogether, index: int, rollout: PlayedEpisode) -> AgentEvidence:
    """The true run, with another rollout in a group of it."""
    rollouts = (*group.rollouts[:index], rollout, *group.rollouts[index + 1 :])
    return with_group(replace(group, rollouts=rollouts))


def without(group: PlayedTogether) -> AgentEvidence:
    """The true run, and one of its groups was lost."""
    return replace(TRUE, groups=tuple(each for each in TRUE.groups if each is not group))


FIRST = BY_DRIVER.rollouts[0]
OURS = FROM_OUTSIDE.rollouts[0]
FAULTS: dict[str, tuple[AgentEvidence, set[str]]] = {
    "an acknowledged group is lost": (
        without(FROM_OUTSIDE),
        {
            "every_acknowledged_finish_is_in_the_store_once_with_its_reward",
            "what_was_left_has_failed",
            "what_was_committed_is_never_lost_or_changed",
        },
    ),
    "a group from outside is stored twice": (
        replace(TRUE, groups=(*TRUE.groups, replace(FROM_OUTSIDE, id=4))),
        {
            "every_acknowledged_finish_is_in_the_store_once_with_its_reward",
            "every_rollout_from_outside_has_its_session",
            "nothing_is_trained_twice",
        },
    ),
    "another reward is stored than was told": (
        with_rollout(FROM_OUTSIDE, 0, replace(OURS, reward=0.5)),
        {"every_acknowledged_finish_is_in_the_store_once_with_its_reward"},
    ),
    "a finished rollout counts as failed for another reason": (
        with_rollout(FROM_OUTSIDE, 1, PlayedEpisode(None, "PolicyUnavailable")),
        {"every_acknowledged_finish_is_in_the_store_once_with_its_reward"},
    ),
    "a rollout was made up": (
        with_group(replace(FROM_OUTSIDE, rollouts=(*FROM_OUTSIDE.rollouts, PlayedEpisode(None, "?")))),
        {"every_rollout_from_outside_has_its_session"},
    ),
    "a session has no rollout": (
        replace(TRUE, sessions=(*TRUE.sessions, OpenedFromOutside("mine", True, True))),
        {"every_rollout_from_outside_has_its_session"},
    ),
    "a session was never finished": (
        replace(TRUE, sessions=(*TRUE.sessions[1:], OpenedFromOutside("mine", False, False))),
        {"no_session_is_open_after_the_run"},
    ),
    "a finished session was never submitted": (
        replace(TRUE, sessions=(*TRUE.sessions[1:], OpenedFromOutside("mine", True, False))),
        {"no_session_is_open_after_the_run"},
    ),
    "a session that was left has a reward": (
        with_rollout(FROM_OUTSIDE, 2, PlayedEpisode(1.0, stretches=(stretch(SAMPLED[4]),))),
        {"what_was_left_has_failed"},
    ),
    "a group of a driver is lost": (
        without(BY_DRIVER),
        {"what_was_committed_is_never_lost_or_changed"},
    ),
    "a group was changed after it was committed": (
        with_group(replace(BY_DRIVER, digest="c")),
        {"what_was_committed_is_never_lost_or_changed"},
    ),
    "a group is in two batches": (
        with_group(replace(BY_DRIVER, steps=(0, 1))),
        {"a_group_is_in_at_most_one_batch"},
    ),
    "a group was trained in no batch": (
        with_group(replace(BY_DRIVER, steps=())),
        {"a_group_is_in_at_most_one_batch"},
    ),
    "a group that failed is in a batch": (
        with_group(replace(UNPLAYED, steps=(1,))),
        {"a_group_is_in_at_most_one_batch"},
    ),
    "a group is played for ever": (
        with_group(replace(UNPLAYED, state="playing")),
        {"every_group_has_come_to_its_end"},
    ),
    "a batch is not what was hashed": (
        replace(TRUE, broken_batches=("step 1: other bytes",)),
        {"batches_are_what_was_hashed"},
    ),
    "a token was never sampled": (
        with_rollout(BY_DRIVER, 0, replace(FIRST, stretches=(FIRST.stretches[0]._replace(token_ids=[7, 9]),))),
        {"what_is_stored_is_what_the_engine_sampled"},
    ),
    "a token was sampled after something else": (
        with_rollout(BY_DRIVER, 0, replace(FIRST, stretches=(FIRST.stretches[0]._replace(before=[1, 2]),))),
        {"what_is_stored_is_what_the_engine_sampled"},
    ),
    "nobody sampled a reply": (
        replace(TRUE, sampled=TRUE.sampled[1:]),
        {"what_is_stored_is_what_the_engine_sampled"},
    ),
    "there is a reward for nothing": (
        with_rollout(BY_DRIVER, 0, replace(FIRST, stretches=())),
        {"what_is_stored_is_what_the_engine_sampled"},
    ),
    "a reply is in two rollouts": (
        with_rollout(BY_DRIVER, 1, replace(BY_DRIVER.rollouts[1], stretches=(stretch(SAMPLED[0]),))),
        {"nothing_is_trained_twice"},
    ),
    "a lease is left": (replace(TRUE, leases=1), {"no_lease_is_left"}),
    "the run goes on for ever": (replace(TRUE, state="finishing"), {"the_run_has_finished"}),
    "the run failed": (replace(TRUE, state="failed"), {"the_run_has_finished"}),
    "a process is left": (replace(TRUE, living=("environment 7",)), {"no_process_of_the_run_is_left"}),
}


def test_a_true_run_breaks_no_rule() -> None:
    assert broken(TRUE) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_name_and_by_no_other(fault: str) -> None:
    evidence, rules = FAULTS[fault]
    assert {rule for rule, _, _ in broken(evidence)} == rules


def test_every_rule_finds_something() -> None:
    assert {rule for _, rules in FAULTS.values() for rule in rules} == {rule.__name__ for rule in AGENT_RULES}
