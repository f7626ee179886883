-- Note that an environment made a request, unless that was noted a moment ago; tell whether its share had lapsed.
-- Locks: the client's row.
-- Index: primary key.
WITH before AS (
    SELECT id, lapsed_at FROM rollouts_environmentclient
    WHERE id = %(client_id)s AND seen_at < clock_timestamp() - make_interval(secs => %(heartbeat_s)s)
    FOR NO KEY UPDATE
)
UPDATE rollouts_environmentclient AS client
SET seen_at = clock_timestamp(), lapsed_at = NULL
FROM before
WHERE client.id = before.id
RETURNING before.lapsed_at IS NOT NULL
