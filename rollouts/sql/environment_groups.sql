-- The newest groups of a run by environment and version of it: how many failed, and where the time of their episodes went.
-- Bounded: that many groups, of each the time of four rollouts at most, of each of which the shares of 500 spans at most.
-- Locks: nothing.
-- Index: group_recent (partial), rollout_index_once_per_group; OFFSET 0 keeps the planner from reading all rollouts.
WITH newest AS MATERIALIZED (
    SELECT id, environment_id, environment_version, state, settled_at
    FROM rollouts_scoredgroup
    WHERE run_id = %(run_id)s AND settled_at IS NOT NULL
    ORDER BY settled_at DESC
    LIMIT %(groups)s
),
counted AS (
    SELECT environment_id, environment_version, count(*) AS groups,
           count(*) FILTER (WHERE state = 'failed') AS failed, max(settled_at) AS settled_at,
           (array_agg(state ORDER BY settled_at DESC))[1] AS last_state
    FROM newest
    GROUP BY environment_id, environment_version
),
timed AS (
    SELECT newest.environment_id, newest.environment_version, count(*) AS episodes,
           percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (
               ORDER BY (spans -> -1 ->> 1)::float8 + (spans -> -1 ->> 2)::float8
           ) AS durations,
           sum(spent.model_s) AS model_s, sum(spent.tools_s) AS tools_s, sum(spent.scoring_s) AS scoring_s
    FROM newest
    CROSS JOIN LATERAL (
        SELECT spans
        FROM rollouts_rollout
        WHERE group_id = newest.id AND index < 4
        OFFSET 0
    ) AS rollout
    CROSS JOIN LATERAL (
        SELECT coalesce(sum((span ->> 2)::float8) FILTER (WHERE span ->> 0 = 'model'), 0) AS model_s,
               coalesce(sum((span ->> 2)::float8) FILTER (WHERE span ->> 0 = 'tools'), 0) AS tools_s,
               coalesce(sum((span ->> 2)::float8) FILTER (WHERE span ->> 0 = 'scoring'), 0) AS scoring_s
        FROM jsonb_array_elements(jsonb_path_query_array(spans, '$[0 to 499]')) AS span
    ) AS spent
    WHERE spans -> -1 IS NOT NULL
    GROUP BY newest.environment_id, newest.environment_version
)
SELECT counted.environment_id, counted.environment_version, counted.groups, counted.failed, counted.settled_at,
       counted.last_state, coalesce(timed.episodes, 0), timed.durations[1], timed.durations[2],
       timed.model_s, timed.tools_s, timed.scoring_s
FROM counted
LEFT JOIN timed USING (environment_id, environment_version)
ORDER BY counted.settled_at DESC
