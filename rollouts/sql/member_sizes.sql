-- The next members of a version, in their order, with about how many bytes each is: enough to read few large ones or
-- many small ones at a time. Nothing is unpacked for it.
-- Locks: nothing. Everything read here is insert-only.
-- Index: dataset_member_position_once, primary keys.
SELECT m.position,
       coalesce(pg_column_size(r.messages) + coalesce(pg_column_size(r.earlier_branches), 0) + r.token_count, 0)
       + coalesce(pg_column_size(o.messages) + o.token_count, 0)
       + coalesce(pg_column_size(m.row), 0) AS bytes
FROM rollouts_datasetmember AS m
LEFT JOIN rollouts_rollout AS r ON r.id = m.rollout_id
LEFT JOIN rollouts_rollout AS o ON o.id = m.other_id
WHERE m.version_id = %(version_id)s AND m.position >= %(position)s
ORDER BY m.position
LIMIT %(limit)s
