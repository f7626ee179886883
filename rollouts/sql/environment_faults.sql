-- What went wrong in the newest groups of runs: by environment, version of it, kind and type, with the newest of each.
-- With `together`, environments of several runs count as one, of id 0.
-- Locks: nothing.
-- Index: group_recent (partial), rollout_index_once_per_group; OFFSET 0 keeps the planner from reading all rollouts.
WITH newest AS MATERIALIZED (
    SELECT scored.id, CASE WHEN %(together)s THEN 0 ELSE environment_id END AS environment_id, environment_version,
           run.id AS run_id, key, settled_at
    FROM unnest(%(run_ids)s::bigint[]) AS run (id)
    CROSS JOIN LATERAL (
        SELECT id, environment_id, environment_version, key, settled_at
        FROM rollouts_scoredgroup
        WHERE run_id = run.id AND settled_at IS NOT NULL
        ORDER BY settled_at DESC
        LIMIT %(groups)s
    ) AS scored
    WHERE %(environment_ids)s::bigint[] IS NULL OR environment_id = ANY(%(environment_ids)s)
),
counted AS (
    SELECT environment_id, environment_version, error_kind, error_type, count(*) AS rollouts,
           count(DISTINCT newest.id) AS groups, max(settled_at) AS settled_at,
           (array_agg(key ORDER BY settled_at DESC, index))[1] AS key,
           (array_agg(index ORDER BY settled_at DESC, index))[1] AS index,
           (array_agg(newest.run_id ORDER BY settled_at DESC, index))[1] AS run_id,
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
       counted.rollouts, counted.groups, counted.settled_at, run.key, counted.key, counted.index,
       coalesce(left(rollout.error ->> 'message', %(characters)s), '')
FROM counted
JOIN rollouts_rollout AS rollout ON rollout.id = counted.rollout_id
JOIN rollouts_run AS run ON run.id = counted.run_id
ORDER BY counted.rollouts DESC, counted.settled_at DESC
