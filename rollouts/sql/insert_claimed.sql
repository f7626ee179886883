-- Begin groups of a run: their rows, a lease on each and their first events. Returns their ids and the leases' tokens,
-- in the order of the problems given.
-- Locks: nothing; the caller holds the run's environments, so that claims of a run are serial.
-- Index: none.
WITH wanted AS (
    SELECT * FROM unnest(
        %(keys)s::text[], %(environment_ids)s::bigint[], %(purposes)s::text[], %(evaluation_ids)s::bigint[], %(indexes)s::bigint[]
    ) WITH ORDINALITY AS wanted(key, environment_id, purpose, evaluation_id, problem_index, position)
), begun AS (
    INSERT INTO rollouts_scoredgroup (
        run_id, environment_id, key, purpose, evaluation_id, problem_index, problem_key, state, reason_code, reason_params,
        state_at, lease_count, created_at, rollout_count, token_count
    )
    SELECT %(run_id)s, environment_id, key, purpose, evaluation_id, problem_index, '', 'playing', '', '{}',
           clock_timestamp(), 1, clock_timestamp(), 0, 0
    FROM wanted ORDER BY position
    RETURNING id, key
), leased AS (
    INSERT INTO rollouts_lease (group_id, run_id, holder, token, claimed_at, expires_at, policy_version)
    SELECT id, %(run_id)s, %(holder)s, gen_random_uuid(), clock_timestamp(),
           clock_timestamp() + make_interval(secs => %(lease_s)s), %(version)s
    FROM begun ORDER BY id
    RETURNING group_id, token
), logged AS (
    INSERT INTO rollouts_event (run_id, at, object_kind, object_id, from_state, to_state, reason_code, reason_params, actor)
    SELECT %(run_id)s, clock_timestamp(), 'scoredgroup', id, '', 'playing', '', '{}', %(actor)s
    FROM begun ORDER BY id
)
SELECT begun.id, leased.token
FROM begun JOIN leased ON leased.group_id = begun.id JOIN wanted USING (key)
ORDER BY wanted.position
