-- What is said of the rollouts of some groups, in rollout order; JSON stays text, for whoever passes it on.
-- Locks: nothing. Everything read here is insert-only, but for rewards that people give while a group is held.
-- Index: rollout_index_once_per_group, primary key of groups.
SELECT group_id, coalesce(grp.given_rewards[index + 1], reward), messages::text, earlier_branches::text, tools::text, seat
FROM rollouts_rollout JOIN rollouts_scoredgroup AS grp ON grp.id = group_id
WHERE group_id = ANY(%(group_ids)s)
ORDER BY group_id, index
