-- Every metric key of a run, sorted.
-- Locks: nothing.
-- Index: metric_point_once_per_step (run, key, step), one entry of each key: DISTINCT would read all points.
WITH RECURSIVE found(key) AS (
    (SELECT key FROM rollouts_metricpoint WHERE run_id = %(run_id)s ORDER BY key LIMIT 1)
    UNION ALL
    SELECT next.key
    FROM found CROSS JOIN LATERAL (
        SELECT key FROM rollouts_metricpoint WHERE run_id = %(run_id)s AND key > found.key ORDER BY key LIMIT 1
    ) AS next
)
SELECT key FROM found
