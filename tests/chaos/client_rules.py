"""Promises to clients: what they were told holds in the store."""

from collections import Counter
from collections.abc import Iterator

from tests.chaos.evidence import Evidence, ranges
from tests.chaos.history import Act, Outcome, Sent


def acknowledged_groups_are_stored(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """A 2xx means that the group survives."""
    copies = Counter(group.marker for group in evidence.stored)
    for marker, outcomes in evidence.attempts.items():
        keyed = evidence.sent[marker].key is not None
        promised = min(outcomes[Outcome.OK], 1) if keyed else outcomes[Outcome.OK]
        if copies[marker] < promised:
            yield _name(evidence.sent[marker]), f"acknowledged {outcomes[Outcome.OK]} times, stored {copies[marker]}"


def unknown_groups_are_stored_once_or_not_at_all(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """With a key never twice, however often it was sent; without one as often as it was sent and not refused."""
    copies = Counter(group.marker for group in evidence.stored)
    for marker, outcomes in evidence.attempts.items():
        possible = outcomes[Outcome.OK] + outcomes[Outcome.UNKNOWN]
        allowed = min(possible, 1) if evidence.sent[marker].key is not None else possible
        if copies[marker] > allowed:
            yield _name(evidence.sent[marker]), f"stored {copies[marker]} times, at most {allowed} is right"


def stored_groups_are_what_was_sent(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Nothing is made up, and no token, mask or logprob changes."""
    for group in evidence.stored:
        sent = evidence.sent.get(group.marker) if group.marker else None
        if sent is None:
            yield group.key, "nobody sent it" if group.marker else "it has no tokens"
        elif group.digest != sent.digest or (sent.key or group.key) != group.key:
            yield group.key, f"stored as {group.digest}, sent as {sent.key} {sent.digest}"


def received_batches_are_stored(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """What a trainer received whole is what the store has for the step, on every fetch and in every epoch.

    A body that names no step is known by its hash, and holds the groups of that batch in its order.
    """
    stored = {batch.step: batch.sha256 for batch in evidence.batches}
    by_hash = {batch.sha256: batch for batch in evidence.batches}
    for call in evidence.of(Act.FETCH, Act.ACK, outcome=Outcome.OK):
        heard = call.heard if call.asked.act is Act.FETCH else call.asked
        if not heard or not heard.sha256:
            continue
        if heard.markers is None:
            if stored.get(heard.step or 0) != heard.sha256:
                yield f"step {heard.step}", f"{call.client} has {heard.sha256}, stored is {stored.get(heard.step or 0)}"
        elif heard.sha256 not in by_hash:
            yield f"batch {heard.sha256[:8]}", f"{call.client} received it, and it is not stored"
        elif heard.markers != by_hash[heard.sha256].markers:
            yield f"step {by_hash[heard.sha256].step}", f"{call.client} received {heard.markers}"


def trained_batches_were_received(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """A batch that counts as trained without an acknowledgement was received whole.

    Except that nobody but the client can know what became of bytes the kernel had taken: for each call without an
    answer one batch may be lost.
    """
    calls = evidence.of(Act.FETCH)
    received = {call.heard.sha256 for call in calls if call.heard}
    lost = [
        batch for batch in evidence.batches if batch.is_trained and not batch.has_ack and batch.sha256 not in received
    ]
    unanswered = sum(call.outcome is Outcome.UNKNOWN for call in calls)
    if len(lost) > unanswered:
        yield ranges([batch.step for batch in lost]), f"trained, never received; {unanswered} calls had no answer"


def acknowledged_steps_are_trained(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """A step whose acknowledgement was answered counts."""
    trained = {batch.step for batch in evidence.batches if batch.is_trained}
    for step in sorted({call.asked.step for call in evidence.of(Act.ACK, outcome=Outcome.OK)} - trained):
        yield f"step {step}", "was acknowledged and is not trained"


def an_epoch_ends_with_the_next_registration(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Whoever registers is the only trainer that is served from the moment it is told so."""
    registered = [
        call.heard for call in evidence.of(Act.REGISTER, outcome=Outcome.OK) if call.heard and call.heard.epoch
    ]
    for epoch, count in Counter(heard.epoch for heard in registered).items():
        if count > 1:
            yield f"epoch {epoch}", f"was given {count} times"
    since = sorted((heard.at_ns, heard.epoch or 0) for heard in registered)
    newest, at = 0, 0
    for call in evidence.of(Act.FETCH, Act.ACK):
        while at < len(since) and since[at][0] < call.asked.at_ns:
            newest, at = max(newest, since[at][1]), at + 1
        if call.outcome is Outcome.OK and call.asked.epoch is not None and call.asked.epoch < newest:
            yield f"epoch {call.asked.epoch}", f"{call.client} was served after epoch {newest} had registered"


def _name(group: Sent) -> str:
    return group.key or f"group {group.marker}"
