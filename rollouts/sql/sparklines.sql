-- One metric of many runs in at most `points` buckets each, for the list of runs: their means, and the newest value itself
-- in place of that of the last one.
-- Locks: nothing.
-- Index: metric_point_once_per_step (run, key, step).
WITH chosen AS (
    SELECT run_id, step, value, max(step) OVER (PARTITION BY run_id) AS last_step
    FROM rollouts_metricpoint
    WHERE run_id = ANY(%(run_ids)s) AND key = %(key)s
)
SELECT run_id, coalesce(max(value) FILTER (WHERE step = last_step), avg(value))
FROM chosen
GROUP BY run_id, step / (1 + last_step / %(points)s)
ORDER BY run_id, step / (1 + last_step / %(points)s)
