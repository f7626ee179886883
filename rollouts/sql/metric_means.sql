-- The mean of each metric over the rollouts of an evaluation that have it.
-- Locks: nothing.
-- Index: group_evaluation, rollout_index_once_per_group.
SELECT metric.key, avg(metric.value::float8)
FROM rollouts_scoredgroup AS grp
JOIN rollouts_rollout AS rollout ON rollout.group_id = grp.id
CROSS JOIN LATERAL jsonb_each_text(rollout.metrics) AS metric(key, value)
WHERE grp.evaluation_id = %(evaluation_id)s AND rollout.reward IS NOT NULL
GROUP BY metric.key
