-- How the rewards of the newest groups of runs are spread, of some of their environments: by version and bin, the last
-- of which holds its upper end. The bins reach from the lowest reward, 0 at most, to the highest, 1 at least.
-- Bounded: so many groups of each run, of each four rollouts at most.
-- Locks: nothing.
-- Index: group_recent (partial), rollout_index_once_per_group.
WITH newest AS MATERIALIZED (
    SELECT scored.id, environment_version
    FROM unnest(%(run_ids)s::bigint[]) AS run (id)
    CROSS JOIN LATERAL (
        SELECT id, environment_id, environment_version
        FROM rollouts_scoredgroup
        WHERE run_id = run.id AND settled_at IS NOT NULL
        ORDER BY settled_at DESC
        LIMIT %(groups)s
    ) AS scored
    WHERE environment_id = ANY(%(environment_ids)s)
),
rewarded AS (
    SELECT environment_version, reward
    FROM newest
    CROSS JOIN LATERAL (
        SELECT reward
        FROM rollouts_rollout
        WHERE group_id = newest.id AND index < 4 AND reward IS NOT NULL
        OFFSET 0
    ) AS rollout
),
bounds AS (
    SELECT least(min(reward), 0) AS low, greatest(max(reward), 1) AS high
    FROM rewarded
)
SELECT low, high, environment_version, least(width_bucket(reward, low, high, %(bins)s), %(bins)s) - 1 AS bin, count(*)
FROM rewarded
CROSS JOIN bounds
GROUP BY low, high, environment_version, bin
ORDER BY environment_version, bin
