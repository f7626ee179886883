-- The newest groups of runs by environment and version of it: how many failed, how their episodes ended, and where the
-- time of those went. With `together`, environments of several runs count as one, of id 0.
-- Bounded: so many groups of each run, of each four rollouts at most, of each of which 500 spans at most.
-- Locks: nothing.
-- Index: group_recent (partial), rollout_index_once_per_group; OFFSET 0 keeps the planner from reading all rollouts.
WITH newest AS MATERIALIZED (
    SELECT scored.id, CASE WHEN %(together)s THEN 0 ELSE environment_id END AS environment_id, environment_version,
           state, settled_at
    FROM unnest(%(run_ids)s::bigint[]) AS run (id)
    CROSS JOIN LATERAL (
        SELECT id, environment_id, environment_version, state, settled_at
        FROM rollouts_scoredgroup
        WHERE run_id = run.id AND settled_at IS NOT NULL
        ORDER BY settled_at DESC
        LIMIT %(groups)s
    ) AS scored
    WHERE %(environment_ids)s::bigint[] IS NULL OR environment_id = ANY(%(environment_ids)s)
),
counted AS (
    SELECT environment_id, environment_version, count(*) AS groups,
           count(*) FILTER (WHERE state = 'failed') AS failed, max(settled_at) AS settled_at,
           (array_agg(state ORDER BY settled_at DESC))[1] AS last_state
    FROM newest
    GROUP BY environment_id, environment_version
),
played AS (
    SELECT newest.environment_id, newest.environment_version, count(*) AS rollouts,
           count(*) FILTER (WHERE stop_reason = 'length') AS truncated,
           count(*) FILTER (WHERE stop_reason = 'turns') AS out_of_turns,
           count(*) FILTER (WHERE error_kind = 'budget') AS late,
           avg(reward) AS reward_mean,
           count(*) FILTER (WHERE measured.seconds IS NOT NULL) AS episodes,
           percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY measured.seconds) AS durations,
           sum(measured.model_s) AS model_s, sum(measured.tools_s) AS tools_s, sum(measured.scoring_s) AS scoring_s
    FROM newest
    CROSS JOIN LATERAL (
        SELECT spans, stop_reason, error_kind, reward
        FROM rollouts_rollout
        WHERE group_id = newest.id AND index < 4
        OFFSET 0
    ) AS rollout
    LEFT JOIN LATERAL (
        SELECT (spans -> -1 ->> 1)::float8 + (spans -> -1 ->> 2)::float8 AS seconds,
               coalesce(sum((span ->> 2)::float8) FILTER (WHERE span ->> 0 = 'model'), 0) AS model_s,
               coalesce(sum((span ->> 2)::float8) FILTER (WHERE span ->> 0 = 'tools'), 0) AS tools_s,
               coalesce(sum((span ->> 2)::float8) FILTER (WHERE span ->> 0 = 'scoring'), 0) AS scoring_s
        FROM jsonb_array_elements(jsonb_path_query_array(spans, '$[0 to 499]')) AS span
    ) AS measured ON spans -> -1 IS NOT NULL
    GROUP BY newest.environment_id, newest.environment_version
)
SELECT counted.environment_id, counted.environment_version, counted.groups, counted.failed, counted.settled_at,
       counted.last_state, coalesce(played.rollouts, 0), coalesce(played.truncated, 0), coalesce(played.out_of_turns, 0),
       coalesce(played.late, 0), played.reward_mean, coalesce(played.episodes, 0), played.durations[1],
       played.durations[2], played.model_s, played.tools_s, played.scoring_s
FROM counted
LEFT JOIN played USING (environment_id, environment_version)
ORDER BY counted.settled_at DESC
