"""What there is to judge a run by: its clients' histories beside its tables."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.db import connection

from rollouts.models import Run
from tests.chaos.history import Act, Call, Outcome, Sent


class Stored(NamedTuple):
    """A submitted group as the store has it. What drivers of ours played has no history."""

    id: int
    key: str
    marker: tuple[int, int] | None
    """As in `Sent`; None: it has no tokens."""
    digest: str | None


class StoredBatch(NamedTuple):
    """A batch as the store has it."""

    step: int
    sha256: str
    is_trained: bool
    has_ack: bool
    """Whether its protocol lets a trainer acknowledge it; Atropos' does not."""
    markers: list[tuple[int, int] | None]
    """Of its groups, in order."""


class Evidence:
    """A run, its groups, and every call that was made about it."""

    def __init__(self, run: Run, calls: list[Call]) -> None:
        self.run = Run.objects.get(pk=run.pk)
        self.calls = calls
        self.stored = list(_groups(run))
        self.batches = list(_batches(run))
        self.attempts: defaultdict[tuple[int, int], Counter[Outcome]] = defaultdict(Counter)
        """Marker of a group -> how the calls ended that sent it."""
        self.sent: dict[tuple[int, int], Sent] = {}
        for call in self.of(Act.SUBMIT):
            for group in call.asked.groups:
                self.sent[group.marker] = group
                self.attempts[group.marker][call.outcome] += 1

    def of(self, *acts: Act, outcome: Outcome | None = None) -> list[Call]:
        """The calls of these kinds, in order; only those that ended so when an outcome is given."""
        return [call for call in self.calls if call.asked.act in acts and outcome in {None, call.outcome}]


def sql(query: str, **values: Any) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchall()


def _groups(run: Run) -> Iterator[Stored]:
    rows = sql(
        """
        SELECT id, key, substring(token_ids FROM 1 FOR 8),
               encode(sha256(lengths || token_ids || loss_mask || inference_logprobs), 'hex')
        FROM rollouts_scoredgroup AS grp LEFT JOIN rollouts_grouptokens AS tokens ON tokens.group_id = grp.id
        WHERE run_id = %(run)s AND problem_index IS NULL ORDER BY id
        """,
        run=run.pk,
    )
    for id_, key, start, digest in rows:
        yield Stored(id_, key, _marker(start), digest)


def _batches(run: Run) -> Iterator[StoredBatch]:
    rows = sql(
        """
        SELECT step, sha256, batch.state = 'trained', encoding = 'msgpack',
               array_agg(substring(token_ids FROM 1 FOR 8) ORDER BY position)
        FROM rollouts_batch AS batch LEFT JOIN rollouts_batchitem AS item ON item.batch_id = batch.id
        LEFT JOIN rollouts_grouptokens AS tokens ON tokens.group_id = item.group_id
        WHERE run_id = %(run)s GROUP BY batch.id ORDER BY step
        """,
        run=run.pk,
    )
    for step, sha256, is_trained, has_ack, starts in rows:
        yield StoredBatch(step, sha256, is_trained, has_ack, [_marker(start) for start in starts])


def _marker(start: bytes | None) -> tuple[int, int] | None:
    head = bytes(start or b"")
    return (int.from_bytes(head[:4], "little"), int.from_bytes(head[4:], "little")) if len(head) == 8 else None


def ranges(steps: list[int]) -> str:
    """Steps, in short."""
    return f"{len(steps)} from {min(steps, default=0)} to {max(steps, default=0)}"
