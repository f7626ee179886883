-- The problems of one evaluation that are settled: scores of their rollouts in order, what failed, was cut, was sampled.
-- What an endpoint says that it sampled is a metric, and no code that writes metrics may say more than can be summed.
-- Locks: nothing.
-- Index: group_problem_once_per_evaluation, rollout_index_once_per_group.
SELECT g.problem_index, g.problem_key, g.environment_version,
       coalesce(array_agg(r.reward ORDER BY r.index) FILTER (WHERE r.reward IS NOT NULL), '{}') AS scores,
       count(r.id) AS rollouts,
       coalesce(
           sum(
               r.trained_token_count
               + least(greatest(coalesce((r.metrics ->> 'endpoint/completion_tokens')::float8, 0), 0), 2147483647)
           ),
           0
       )::bigint AS tokens,
       count(*) FILTER (WHERE r.stop_reason = 'length') AS truncated,
       count(*) FILTER (WHERE r.stop_reason = 'turns') AS out_of_turns,
       coalesce(
           array_agg(r.error_kind || ': ' || coalesce(r.error ->> 'type', '') ORDER BY r.index)
               FILTER (WHERE r.stop_reason = 'error'),
           '{}'
       ) AS errors
FROM rollouts_scoredgroup g
LEFT JOIN rollouts_rollout r ON r.group_id = g.id
WHERE g.evaluation_id = %(evaluation_id)s AND g.settled_at IS NOT NULL AND g.state <> 'surplus'
GROUP BY g.id
ORDER BY g.problem_index
