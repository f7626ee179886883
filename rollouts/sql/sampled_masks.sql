-- Which tokens of some groups were sampled, without the tokens.
-- Locks: nothing. Everything read here is insert-only.
-- Index: primary key.
SELECT group_id, lengths, loss_mask, branch_lengths
FROM rollouts_grouptokens
WHERE group_id = ANY(%(group_ids)s)
