"""Promises of the store: what must hold of its tables, whoever asked for what."""

import hashlib
from collections.abc import Iterator

from rollouts.formats.batch_body import encode
from rollouts.models import Batch
from rollouts.selectors import runs as run_selectors
from tests.chaos.evidence import Evidence, ranges, sql
from tests.rollouts.invariants import check_ledger


def every_group_is_in_the_state_of_its_last_event(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Each group was created once, every change of it follows from the one before, and the last is its state."""
    rows = sql(
        """
        WITH changes AS (
            SELECT object_id, id, from_state, to_state,
                   lag(to_state, 1, '') OVER (PARTITION BY object_id ORDER BY id) AS before,
                   last_value(to_state) OVER (PARTITION BY object_id ORDER BY id
                                              ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS latest
            FROM rollouts_event WHERE run_id = %(run)s AND object_kind = 'scoredgroup'
        ), lives AS (
            SELECT object_id, count(*) FILTER (WHERE from_state = '') AS births,
                   count(*) FILTER (WHERE from_state <> before) AS gaps, min(latest) AS latest
            FROM changes GROUP BY object_id
        )
        SELECT object_id, key, state, births, gaps, latest
        FROM lives FULL JOIN (SELECT id, key, state FROM rollouts_scoredgroup WHERE run_id = %(run)s) AS grp
            ON grp.id = object_id
        WHERE (state = latest AND births = 1 AND gaps = 0) IS NOT TRUE
        """,
        run=evidence.run.pk,
    )
    for object_id, key, state, births, gaps, latest in rows:
        yield key or f"group {object_id}", f"is {state}; {births} births, {gaps} gaps, the last event says {latest}"


def the_ledger_sums_up(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Groups = creation events = sum over the states that the page shows."""
    run = evidence.run.pk
    [(groups,)] = sql("SELECT count(*) FROM rollouts_scoredgroup WHERE run_id = %(run)s AND purpose = 'train'", run=run)
    [(every,)] = sql("SELECT count(*) FROM rollouts_scoredgroup WHERE run_id = %(run)s", run=run)
    [(created,)] = sql(
        "SELECT count(*) FROM rollouts_event"
        " WHERE run_id = %(run)s AND object_kind = 'scoredgroup' AND from_state = ''",
        run=run,
    )
    shown = sum(line.groups for line in run_selectors.ledger(evidence.run))
    if (every, groups) != (created, shown):
        yield evidence.run.key, f"{every} groups of {created} created; {groups} for training, {shown} in the ledger"


def a_group_trains_in_at_most_one_step(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Unless a person replays it on record, which gives it the next replay number."""
    rows = sql(
        """
        SELECT group_id, replay, array_agg(step ORDER BY step) FROM rollouts_batchitem AS item
        JOIN rollouts_batch AS batch ON batch.id = batch_id WHERE batch.run_id = %(run)s
        GROUP BY group_id, replay HAVING count(*) > 1
        """,
        run=evidence.run.pk,
    )
    for group_id, replay, steps in rows:
        yield f"group {group_id}", f"replay {replay} is in the steps {steps}"


def groups_and_batches_agree(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """A group is batched or trained exactly when it is a member of a batch that is open or trained."""
    rows = sql(
        """
        SELECT coalesce(grp.key, ''), grp.state, batch.step, batch.state FROM
            (SELECT * FROM rollouts_scoredgroup WHERE run_id = %(run)s) AS grp
        FULL JOIN
            (SELECT item.group_id, b.step, b.state FROM rollouts_batchitem AS item
             JOIN rollouts_batch AS b ON b.id = item.batch_id WHERE b.run_id = %(run)s AND item.replay = 0) AS batch
        ON batch.group_id = grp.id
        WHERE (grp.state IN ('batched', 'trained') OR batch.step IS NOT NULL)
          AND ((grp.state = 'trained' AND batch.state = 'trained')
               OR (grp.state IN ('batched', 'surplus') AND batch.state IN ('formed', 'delivered'))) IS NOT TRUE
        """,
        run=evidence.run.pk,
    )
    for key, state, step, batch_state in rows:
        yield key, f"is {state}, its step {step} is {batch_state}"


def batches_rebuild_to_their_hash(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Any batch ever formed can be rebuilt byte for byte from its rows."""
    for batch in Batch.objects.filter(run=evidence.run).select_related("run").order_by("step"):
        try:
            rebuilt = hashlib.sha256(encode(batch)).hexdigest()
        except Exception as error:  # noqa: BLE001 - rows that cannot be encoded at all are a finding, not a crash
            rebuilt = f"{type(error).__name__}: {error}"
        if rebuilt != batch.sha256:
            yield f"step {batch.step}", f"stored as {batch.sha256}, its rows give {rebuilt}"


def steps_are_contiguous(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """0, 1, 2, ...: first those that were trained, as many as the run counts, then those that are open."""
    rows = sql("SELECT step, state FROM rollouts_batch WHERE run_id = %(run)s ORDER BY step", run=evidence.run.pk)
    trained = [step for step, state in rows if state == "trained"]
    if [step for step, _ in rows] != list(range(len(rows))):
        yield evidence.run.key, f"the steps are {ranges([step for step, _ in rows])}"
    if trained != list(range(evidence.run.next_step)):
        yield evidence.run.key, f"{evidence.run.next_step} steps are counted, trained are {ranges(trained)}"


def epochs_do_not_overlap(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """After the first write of an epoch no older one writes.

    That a batch was delivered is no write of a trainer: it says what was sent, to whomever.
    """
    rows = sql(
        """
        SELECT id, epoch, newest FROM (
            SELECT id, epoch, max(epoch) OVER (ORDER BY id) AS newest FROM (
                SELECT id, substring(actor FROM 'trainer:(.*)')::int AS epoch FROM rollouts_event
                WHERE run_id = %(run)s AND actor ~ '^trainer:[0-9]+$' AND to_state <> 'delivered'
            ) AS writes
        ) AS seen WHERE epoch < newest ORDER BY id
        """,
        run=evidence.run.pk,
    )
    for event, epoch, newest in rows:
        yield f"epoch {epoch}", f"wrote event {event} after epoch {newest} had written"


def trained_rollouts_are_fresh(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """No rollout enters a step that is more than the limit ahead of its oldest policy version."""
    limit = evidence.run.parsed.algorithm.max_off_policy_steps
    rows = sql(
        """
        SELECT key, step, oldest FROM (
            SELECT grp.key, batch.step, least(grp.min_policy_version,
                   min(least(rollout.dispatch_policy_version, rollout.first_policy_version))) AS oldest
            FROM rollouts_batch AS batch
            JOIN rollouts_batchitem AS item ON item.batch_id = batch.id AND item.replay = 0
            JOIN rollouts_scoredgroup AS grp ON grp.id = item.group_id
            LEFT JOIN rollouts_rollout AS rollout ON rollout.group_id = grp.id
            WHERE batch.run_id = %(run)s GROUP BY grp.id, batch.step
        ) AS trained WHERE oldest < step - %(limit)s
        """,
        run=evidence.run.pk,
        limit=limit,
    )
    for key, step, version in rows:
        yield key, f"of version {version} is in step {step}; the limit is {limit}"


def no_lease_is_older_than_twice_its_term(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """A lease that is neither renewed nor settled is taken over: by the database clock, within a term of its end."""
    term_s = evidence.run.parsed.workers.lease_s
    rows = sql(
        "SELECT holder, group_id, extract(epoch FROM clock_timestamp() - expires_at) FROM rollouts_lease"
        " WHERE run_id = %(run)s AND clock_timestamp() - expires_at > make_interval(secs => %(term)s)",
        run=evidence.run.pk,
        term=term_s,
    )
    for holder, group_id, overdue_s in rows:
        yield f"group {group_id}", f"the lease of {holder} of {term_s:.0f} s ended {overdue_s:.0f} s ago"


def the_invariants_of_an_ended_run_hold(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """What the tests of the store ask of every run that is over."""
    if evidence.run.is_over:
        try:
            check_ledger(evidence.run)
        except AssertionError as error:
            yield evidence.run.key, str(error).splitlines()[0]
