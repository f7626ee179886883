-- Note that an address was used, unless that was noted a moment ago or is being noted.
-- Locks: the address's row, without waiting for whoever changes it.
-- Index: primary key.
UPDATE rollouts_address
SET used_at = clock_timestamp()
WHERE run_id = (
    SELECT run_id FROM rollouts_address
    WHERE run_id = %(run_id)s
        AND (used_at IS NULL OR used_at < clock_timestamp() - make_interval(secs => %(use_noted_s)s))
    FOR UPDATE SKIP LOCKED
)
