-- The tokens of a group and which of them were sampled, as they are stored.
-- Locks: nothing. Everything read here is insert-only.
-- Index: primary key.
SELECT lengths, token_ids, loss_mask, branch_lengths
FROM rollouts_grouptokens
WHERE group_id = %(group_id)s
