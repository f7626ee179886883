-- Move rows to another state if they are still in an expected one, and log one event per row moved.
-- Locks: the rows of {table} that are moved, in id order, so that two callers cannot deadlock. Not their keys: whoever
-- inserts a row that refers to one of them need not wait. They are locked by a statement of its own: one that waits for
-- a row and then updates it goes back to the version it saw first, in front of which others may already wait for it.
-- Index: primary key of {table}.
SELECT FROM {table}
WHERE id = ANY(%(ids)s) AND state = ANY(%(expect)s)
ORDER BY id
FOR NO KEY UPDATE;

WITH expected AS (
    SELECT id, state FROM {table}
    WHERE id = ANY(%(ids)s) AND state = ANY(%(expect)s)
), moved AS (
    UPDATE {table} AS t
    SET state = %(to)s, reason_code = %(reason_code)s, reason_params = %(reason_params)s::jsonb,
        state_at = clock_timestamp(){assignments}
    FROM expected
    WHERE t.id = expected.id AND t.state = expected.state
    RETURNING t.id, {run_column} AS run_id, expected.state AS from_state
), logged AS (
    INSERT INTO rollouts_event (run_id, at, object_kind, object_id, from_state, to_state, reason_code, reason_params, actor)
    SELECT run_id, clock_timestamp(), %(object_kind)s, id, from_state, %(to)s,
           %(reason_code)s, %(reason_params)s::jsonb, %(actor)s
    FROM moved ORDER BY id
)
SELECT id, run_id FROM moved ORDER BY id
