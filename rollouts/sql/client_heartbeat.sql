-- Note that an environment made a request, unless that was noted a moment ago; tell the state it is in.
-- Locks: the client's row.
-- Index: primary key.
UPDATE rollouts_environmentclient
SET seen_at = clock_timestamp()
WHERE id = %(client_id)s AND seen_at < clock_timestamp() - make_interval(secs => %(heartbeat_s)s)
RETURNING state
