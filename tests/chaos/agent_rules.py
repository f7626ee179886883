"""What must hold of a run that agents played while its processes were killed. Every rule yields what breaks it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from rollouts.states import GROUP_TRANSITIONS, GroupState
from tests.chaos.agent_engine import Sample
from tests.chaos.agent_evidence import AgentEvidence, PlayedEpisode

Broken = Iterator[tuple[str, str]]
RESTARTED = "the gateway was restarted since"
"""What the gateway says of a session that was finished when it knew nothing of it any more: that, too, is an answer."""
UNFINISHED = "was not finished within"
_ENDS = set(GroupState) - GROUP_TRANSITIONS.keys()


def every_acknowledged_finish_is_in_the_store_once_with_its_reward(evidence: AgentEvidence) -> Broken:
    """A 200 means that the rollout is committed, and its group when it was the last."""
    groups = _from_outside(evidence)
    for told in evidence.acknowledged:
        stored = groups[told.group]
        if len(stored) != 1:
            yield told.group, f"was acknowledged, and is stored {len(stored)} times"
            continue
        rollout = stored[0][told.member] if told.member < len(stored[0]) else PlayedEpisode(None, "it is not there")
        if rollout.reward != told.reward and RESTARTED not in rollout.error:
            yield told.group, f"{told.member} was told {told.reward}, stored is {rollout.reward} {rollout.error}"


def every_rollout_from_outside_has_its_session(evidence: AgentEvidence) -> Broken:
    """As many as were opened, each acknowledged or left: none twice, none made up."""
    opened = Counter(session.group for session in evidence.sessions)
    known = Counter(told.group for told in evidence.acknowledged) + Counter(group for group, _ in evidence.left)
    for group, stored in _from_outside(evidence).items():
        counts = (sum(map(len, stored)), opened[group], known[group])
        if len(set(counts)) > 1:
            yield group, "{} rollouts, {} sessions, {} acknowledged or left".format(*counts)


def no_session_is_open_after_the_run(evidence: AgentEvidence) -> Broken:
    """Each was finished by its agent or by its deadline, and its group was submitted."""
    for session in evidence.sessions:
        if not (session.is_finished and session.is_grouped):
            yield session.group, f"has a session with finished={session.is_finished}, grouped={session.is_grouped}"


def what_was_left_has_failed(evidence: AgentEvidence) -> Broken:
    """A session that nobody finishes is a failed rollout of its group, which says why."""
    groups = _from_outside(evidence)
    for group, member in evidence.left:
        for stored in groups[group] or [()]:
            if member >= len(stored) or UNFINISHED not in stored[member].error:
                yield group, f"{member} was left, stored is {stored[member:][:1]}"


def what_was_committed_is_never_lost_or_changed(evidence: AgentEvidence) -> Broken:
    """A group that was in the store once, settled or submitted, is there at the end with the same tokens."""
    now = {group.id: group.digest for group in evidence.groups}
    for group, digest in evidence.committed.items():
        if now.get(group) != digest:
            yield f"group {group}", f"was committed as {digest}, is {now.get(group)}"


def a_group_is_in_at_most_one_batch(evidence: AgentEvidence) -> Broken:
    """And in exactly one if it was trained."""
    for group in evidence.groups:
        if len(group.steps) != (group.state == "trained"):
            yield f"group {group.id}", f"is {group.state} and in the batches of steps {list(group.steps)}"


def every_group_has_come_to_its_end(evidence: AgentEvidence) -> Broken:
    """Nothing is played, waits or is being trained in a run that is over."""
    for group in evidence.groups:
        if group.state not in _ENDS:
            yield f"group {group.id}", f"is {group.state}"


def batches_are_what_was_hashed(evidence: AgentEvidence) -> Broken:
    """Every batch is encoded anew and compared with its hash."""
    for fault in evidence.broken_batches:
        yield fault.partition(":")[0], fault


def what_is_stored_is_what_the_engine_sampled(evidence: AgentEvidence) -> Broken:
    """Every token under a loss mask was sampled by an engine, in this order, after exactly the tokens before it."""
    known = _by_mark(evidence)
    for group in evidence.groups:
        for index, rollout in enumerate(group.rollouts):
            if rollout.reward is not None and not rollout.stretches:
                yield f"group {group.id}/{index}", "has a reward for nothing"
            for stretch in rollout.stretches:
                samples = known[stretch.mark]
                if [(each.prompt, each.token_ids) for each in samples] != [(stretch.before, stretch.token_ids)]:
                    yield f"group {group.id}/{index}", f"{len(samples)} engines sampled what it says, or something else"


def nothing_is_trained_twice(evidence: AgentEvidence) -> Broken:
    """What was sampled once is in one rollout of the store, in one place."""
    places: defaultdict[bytes, list[str]] = defaultdict(list)
    for group in evidence.groups:
        for index, rollout in enumerate(group.rollouts):
            for stretch in rollout.stretches:
                places[stretch.mark].append(f"group {group.id}/{index}")
    for found in places.values():
        if len(found) > 1:
            yield found[0], f"one reply is in {found}"


def no_lease_is_left(evidence: AgentEvidence) -> Broken:
    """Nobody holds work of a run that is over."""
    if evidence.leases:
        yield "leases", f"{evidence.leases} are left"


def the_run_has_finished(evidence: AgentEvidence) -> Broken:
    """It trained all its steps and ended, by itself."""
    if evidence.state != "finished":
        yield "run", f"is {evidence.state}"


def no_process_of_the_run_is_left(evidence: AgentEvidence) -> Broken:
    """Neither a replica nor an environment, nor what is dead and not reaped."""
    for process in evidence.living:
        yield process, "lives"


AGENT_RULES: tuple[Callable[[AgentEvidence], Broken], ...] = (
    every_acknowledged_finish_is_in_the_store_once_with_its_reward,
    every_rollout_from_outside_has_its_session,
    no_session_is_open_after_the_run,
    what_was_left_has_failed,
    what_was_committed_is_never_lost_or_changed,
    a_group_is_in_at_most_one_batch,
    every_group_has_come_to_its_end,
    batches_are_what_was_hashed,
    what_is_stored_is_what_the_engine_sampled,
    nothing_is_trained_twice,
    no_lease_is_left,
    the_run_has_finished,
    no_process_of_the_run_is_left,
)


def broken(evidence: AgentEvidence) -> list[tuple[str, str, str]]:
    """(rule, about, detail) of whatever is broken."""
    return [(rule.__name__, about, detail) for rule in AGENT_RULES for about, detail in rule(evidence)]


def _from_outside(evidence: AgentEvidence) -> defaultdict[str, list[tuple[PlayedEpisode, ...]]]:
    found: defaultdict[str, list[tuple[PlayedEpisode, ...]]] = defaultdict(list)
    for group in evidence.groups:
        if group.is_outside:
            found[group.key].append(group.rollouts)
    return found


def _by_mark(evidence: AgentEvidence) -> defaultdict[bytes, list[Sample]]:
    found: defaultdict[bytes, list[Sample]] = defaultdict(list)
    for sample in evidence.sampled:
        found[sample.mark].append(sample)
    return found
