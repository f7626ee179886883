-- Store submitted groups of a run under the ids given, and log one event for each. A key the run already has is left
-- alone: nothing is stored under its new id.
-- Locks: nothing, but waits for a transaction that is inserting the same key.
-- Index: group_key_once_per_run.
WITH incoming AS (
    SELECT * FROM unnest(
        %(ids)b::bigint[], %(actors)b::text[], %(keys)b::text[], %(environment_ids)b::bigint[],
        %(environment_versions)b::text[], %(problem_keys)b::text[], %(states)b::text[], %(reason_codes)b::text[], %(reason_params)b::text[],
        %(rollout_counts)b::int[], %(token_counts)b::bigint[], %(reward_means)b::float8[], %(reward_stds)b::float8[],
        %(scored_counts)b::int[], %(solved_counts)b::int[], %(min_versions)b::int[], %(max_versions)b::int[],
        %(held_s)b::float8[]
    ) WITH ORDINALITY AS incoming(
        id, actor, key, environment_id, environment_version, problem_key, state, reason_code, reason_params,
        rollout_count, token_count, reward_mean, reward_std, scored_count, solved_count, min_policy_version,
        max_policy_version, held_s, position
    )
), stored AS (
    INSERT INTO rollouts_scoredgroup (
        id, run_id, environment_id, environment_version, key, purpose, problem_key, state, reason_code, reason_params,
        state_at, lease_count, created_at, settled_at, rollout_count, token_count, reward_mean, reward_std, scored_count,
        solved_count, min_policy_version, max_policy_version, review_until
    )
    SELECT id, %(run_id)s, environment_id, environment_version, key, 'train', problem_key, state, reason_code,
           reason_params::jsonb, clock_timestamp(), 1, clock_timestamp(), clock_timestamp(), rollout_count, token_count, reward_mean,
           reward_std, scored_count, solved_count, min_policy_version, max_policy_version,
           clock_timestamp() + make_interval(secs => held_s)
    FROM incoming ORDER BY position
    ON CONFLICT (run_id, key) DO NOTHING
    RETURNING id, state, reason_code, reason_params
)
INSERT INTO rollouts_event (run_id, at, object_kind, object_id, from_state, to_state, reason_code, reason_params, actor)
SELECT %(run_id)s, clock_timestamp(), 'scoredgroup', id, '', stored.state, stored.reason_code, stored.reason_params,
       incoming.actor
FROM stored JOIN incoming USING (id) ORDER BY id
