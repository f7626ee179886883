-- What is said of the rollouts of some groups, in rollout order; JSON stays text, for whoever passes it on.
-- Locks: nothing. Everything read here is insert-only.
-- Index: rollout_index_once_per_group.
SELECT group_id, reward, messages::text, earlier_branches::text, tools::text, seat
FROM rollouts_rollout
WHERE group_id = ANY(%(group_ids)s)
ORDER BY group_id, index
