-- Give expired leases of a run to a new holder under new tokens: their old holders can no longer settle.
-- Locks: the lease rows taken (skipping those that somebody else is taking), then their groups.
-- Index: group_playing (partial).
WITH expired AS (
    SELECT lease.group_id, lease.holder FROM rollouts_lease AS lease
    JOIN rollouts_scoredgroup AS grp ON grp.id = lease.group_id
    WHERE lease.run_id = %(run_id)s AND lease.expires_at < clock_timestamp() AND grp.lease_count < %(max_leases)s
    ORDER BY lease.group_id
    LIMIT %(limit)s
    FOR UPDATE OF lease SKIP LOCKED
), taken AS (
    UPDATE rollouts_lease AS lease
    SET holder = %(holder)s, policy_version = %(version)s, token = gen_random_uuid(), claimed_at = clock_timestamp(),
        expires_at = clock_timestamp() + make_interval(secs => %(lease_s)s)
    FROM expired WHERE lease.group_id = expired.group_id
    RETURNING lease.group_id, expired.holder AS lost_by
), counted AS (
    UPDATE rollouts_scoredgroup AS grp SET lease_count = lease_count + 1
    FROM taken WHERE grp.id = taken.group_id
), logged AS (
    INSERT INTO rollouts_event (run_id, at, object_kind, object_id, from_state, to_state, reason_code, reason_params, actor)
    SELECT %(run_id)s, clock_timestamp(), 'scoredgroup', group_id, 'playing', 'playing',
           %(reason_code)s, jsonb_build_object('holder', lost_by), %(actor)s
    FROM taken
)
SELECT group_id FROM taken ORDER BY group_id
