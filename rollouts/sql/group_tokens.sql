-- The tokens of a group as they are stored.
-- Locks: nothing. Everything read here is insert-only.
-- Index: primary key.
SELECT token_ids
FROM rollouts_grouptokens
WHERE group_id = %(group_id)s
