-- What forming a batch needs to know of its groups, a row each: facts of their rollouts as arrays in rollout order.
-- Locks: nothing. Everything read here is insert-only.
-- Index: primary keys, rollout_index_once_per_group.
SELECT grp.id, environment.name, grp.min_policy_version, coalesce(grp.given_rewards, facts.rewards), facts.lengths, facts.is_cut,
       facts.seats, tokens.extras
FROM rollouts_scoredgroup AS grp
JOIN rollouts_runenvironment AS environment ON environment.id = grp.environment_id
LEFT JOIN rollouts_grouptokens AS tokens ON tokens.group_id = grp.id
CROSS JOIN LATERAL (
    SELECT array_agg(reward ORDER BY index) AS rewards,
           array_agg(trained_token_count ORDER BY index) AS lengths,
           array_agg(stop_reason = 'length' ORDER BY index) AS is_cut,
           array_agg(seat::text ORDER BY index) AS seats
    FROM rollouts_rollout WHERE group_id = grp.id
) AS facts
WHERE grp.id = ANY(%(group_ids)s::bigint[])
