-- The token arrays of some groups, as they are stored.
-- Locks: nothing. Everything read here is insert-only.
-- Index: primary key.
SELECT group_id, lengths, token_ids, loss_mask, inference_logprobs, ref_logprobs, advantages, branch_lengths, extras
FROM rollouts_grouptokens
WHERE group_id = ANY(%(group_ids)s)
