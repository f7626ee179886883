-- What went wrong in the newest groups of a run: by environment, version of it, kind and type, with the newest of each.
-- Locks: nothing.
-- Index: group_recent (partial), rollout_index_once_per_group; OFFSET 0 keeps the planner from reading all rollouts.
WITH newest AS MATERIALIZED (
    SELECT id, environment_id, environment_version, key, settled_at
    FROM rollouts_scoredgroup
    WHERE run_id = %(run_id)s AND settled_at IS NOT NULL
    ORDER BY settled_at DESC
    LIMIT %(groups)s
),
counted AS (
    SELECT environment_id, environment_version, error_kind, error_type, count(*) AS rollouts,
           count(DISTINCT newest.id) AS groups, max(settled_at) AS settled_at,
           (array_agg(key ORDER BY settled_at DESC, index))[1] AS key,
           (array_agg(index ORDER BY settled_at DESC, index))[1] AS index,
           (array_agg(rollout.id ORDER BY settled_at DESC, index))[1] AS rollout_id
    FROM newest
    CROSS JOIN LATERAL (
        SELECT id, index, error_kind, error ->> 'type' AS error_type
        FROM rollouts_rollout
        WHERE group_id = newest.id AND error_kind <> ''
        OFFSET 0
    ) AS rollout
    GROUP BY environment_id, environment_version, error_kind, error_type
    ORDER BY count(*) DESC, max(settled_at) DESC
    LIMIT %(faults)s
)
SELECT counted.environment_id, counted.environment_version, counted.error_kind,
       coalesce(counted.error_type, ''),
       counted.rollouts, counted.groups, counted.settled_at, counted.key, counted.index,
       coalesce(left(rollout.error ->> 'message', %(characters)s), '')
FROM counted
JOIN rollouts_rollout AS rollout ON rollout.id = counted.rollout_id
ORDER BY counted.rollouts DESC, counted.settled_at DESC
