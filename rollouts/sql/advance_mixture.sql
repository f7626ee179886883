-- Move the clock of a run's mixture, and the virtual times of the environments that a batch took groups of.
-- Locks: the run's row, which the caller has, then those environments in id order, as a claim takes them.
-- Index: primary keys.
WITH clock AS (
    UPDATE rollouts_run SET mixture_clock = %(clock)s WHERE id = %(run_id)s
), moved AS (
    SELECT environment.id, chosen.virtual_time
    FROM rollouts_runenvironment AS environment
    JOIN unnest(%(environment_ids)s::bigint[], %(virtual_times)s::float8[]) AS chosen(id, virtual_time)
        ON chosen.id = environment.id AND chosen.virtual_time <> environment.virtual_time
    ORDER BY environment.id
    FOR NO KEY UPDATE OF environment
)
UPDATE rollouts_runenvironment AS environment
SET virtual_time = moved.virtual_time
FROM moved
WHERE environment.id = moved.id
