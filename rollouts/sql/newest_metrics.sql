-- The newest point of each key of a run; keys without points are absent.
-- Locks: nothing.
-- Index: metric_point_once_per_step (run, key, step), read from the end of each key: DISTINCT ON would read all points.
SELECT wanted.key, newest.step, newest.value
FROM unnest(%(keys)s::text[]) AS wanted(key)
CROSS JOIN LATERAL (
    SELECT step, value FROM rollouts_metricpoint WHERE run_id = %(run_id)s AND key = wanted.key ORDER BY step DESC LIMIT 1
) AS newest
