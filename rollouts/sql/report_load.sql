-- What an inference server says it is busy with, over what it said before. It is idle where nothing runs or waits there,
-- and no more was generated since than a probe asks for. A server that counts anew has been started anew.
-- Locks: the row of the load.
-- Index: primary key.
INSERT INTO rollouts_replicaload AS load
    (replica_id, reported_at, running, waiting, cache_share, tokens, idle_since, idle_s)
VALUES (
    %(replica_id)s, now(), %(running)s, %(waiting)s, %(cache_share)s, %(tokens)s,
    CASE WHEN %(running)s + %(waiting)s = 0 AND %(tokens)s <= %(probes)s THEN now() END, 0
)
ON CONFLICT (replica_id) DO UPDATE SET
    reported_at = excluded.reported_at,
    running = excluded.running,
    waiting = excluded.waiting,
    cache_share = excluded.cache_share,
    tokens = excluded.tokens,
    tokens_per_s = CASE
        WHEN load.reported_at < excluded.reported_at AND load.tokens <= excluded.tokens
        THEN (excluded.tokens - load.tokens) / extract(epoch FROM excluded.reported_at - load.reported_at)
    END,
    idle_since = CASE
        WHEN excluded.running + excluded.waiting > 0 THEN NULL
        WHEN excluded.tokens - load.tokens NOT BETWEEN 0 AND %(probes)s THEN excluded.reported_at
        ELSE coalesce(load.idle_since, excluded.reported_at)
    END,
    idle_s = load.idle_s + CASE
        WHEN load.idle_since IS NOT NULL AND excluded.running + excluded.waiting = 0
            AND excluded.tokens - load.tokens BETWEEN 0 AND %(probes)s
        THEN extract(epoch FROM excluded.reported_at - load.reported_at)
        ELSE 0
    END
