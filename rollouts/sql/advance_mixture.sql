-- Move the clock of a run's mixture, and the virtual times of the environments that a batch took groups of.
-- Locks: the run's row, which the caller has, then those environments in id order, as a claim takes them; by a statement
-- of its own, for the reason given in transition.sql.
-- Index: primary keys.
SELECT FROM rollouts_runenvironment
WHERE id = ANY(%(environment_ids)s)
ORDER BY id
FOR NO KEY UPDATE;

WITH clock AS (
    UPDATE rollouts_run SET mixture_clock = %(clock)s WHERE id = %(run_id)s
)
UPDATE rollouts_runenvironment AS environment
SET virtual_time = chosen.virtual_time
FROM unnest(%(environment_ids)s::bigint[], %(virtual_times)s::float8[]) AS chosen(id, virtual_time)
WHERE environment.id = chosen.id AND environment.virtual_time <> chosen.virtual_time
