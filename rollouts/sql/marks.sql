-- The newest event of each run, 0 where there is none: what pages compare to know whether they are behind.
-- Locks: nothing.
-- Index: the primary key of runs; event_by_run.
SELECT run.key, coalesce((SELECT id FROM rollouts_event WHERE run_id = run.id ORDER BY id DESC LIMIT 1), 0)
FROM rollouts_run AS run
WHERE run.id = ANY(%(run_ids)s)
