-- Note that ready replicas have answered to episodes. Hundreds of drivers may say so of the same few every second: what
-- one of them noted within `kept_s` is not written again.
-- Locks: the replicas that are written, skipping those that somebody else is writing.
-- Index: primary key.
WITH due AS (
    SELECT id FROM rollouts_replica
    WHERE id = ANY(%(ids)s) AND state = 'ready'
      AND (answered_at IS NULL OR answered_at < clock_timestamp() - make_interval(secs => %(kept_s)s))
    FOR UPDATE SKIP LOCKED
)
UPDATE rollouts_replica AS replica SET answered_at = clock_timestamp()
FROM due WHERE replica.id = due.id
