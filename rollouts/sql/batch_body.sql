-- What the body of a batch is made of, a row per group in batch order: tokens as they are stored, facts of its rollouts
-- as arrays in rollout order.
-- Locks: nothing. Everything read here is insert-only.
-- Index: batch_item_position_once, primary keys, rollout_index_once_per_group.
SELECT grp.key, environment.name, grp.problem_key, grp.min_policy_version, item.advantages,
       tokens.lengths, tokens.token_ids, tokens.loss_mask, tokens.inference_logprobs, tokens.ref_logprobs,
       tokens.advantages, tokens.branch_lengths, coalesce(grp.given_rewards, facts.rewards), facts.trained, facts.dispatched, facts.first, facts.last
FROM rollouts_batchitem AS item
JOIN rollouts_scoredgroup AS grp ON grp.id = item.group_id
JOIN rollouts_runenvironment AS environment ON environment.id = grp.environment_id
JOIN rollouts_grouptokens AS tokens ON tokens.group_id = grp.id
CROSS JOIN LATERAL (
    SELECT array_agg(reward ORDER BY index) AS rewards, array_agg(trained_token_count ORDER BY index) AS trained,
           array_agg(dispatch_policy_version ORDER BY index) AS dispatched,
           array_agg(first_policy_version ORDER BY index) AS first,
           array_agg(last_policy_version ORDER BY index) AS last
    FROM rollouts_rollout WHERE group_id = grp.id
) AS facts
WHERE item.batch_id = %(batch_id)s
ORDER BY item.position
