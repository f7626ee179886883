-- Metric series of a run in at most `points` buckets each: the last step of the bucket, its mean, minimum,
-- maximum and first step.
-- Locks: nothing.
-- Index: metric_point_once_per_step (run, key, step).
WITH chosen AS (
    SELECT key, step, value, max(step) OVER (PARTITION BY key) AS last_step, min(step) OVER (PARTITION BY key) AS first_step
    FROM rollouts_metricpoint
    WHERE run_id = %(run_id)s AND key = ANY(%(keys)s) AND step > %(after_step)s
)
SELECT key, max(step) AS step, avg(value), min(value), max(value), min(step)
FROM chosen
GROUP BY key, (step - first_step) / (1 + (last_step - first_step) / %(points)s)
ORDER BY key, step
