-- The training groups that were scored since the newest batch of a run was formed, whether they will be trained or not:
-- how many, the mean reward of their rollouts, and the shares of groups that teach nothing, by why. Bounded: the newest
-- so many of them.
-- Locks: nothing.
-- Index: group_recent (partial), read from its end; batch_once_per_step.
WITH newest AS (
    SELECT state, scored_count, solved_count, reward_mean, reward_std
    FROM rollouts_scoredgroup
    WHERE run_id = %(run_id)s AND settled_at IS NOT NULL AND purpose = 'train' AND scored_count > 0
        AND settled_at > coalesce(
            (SELECT formed_at FROM rollouts_batch WHERE run_id = %(run_id)s ORDER BY step DESC LIMIT 1), '-infinity'
        )
    ORDER BY settled_at DESC
    LIMIT %(groups)s
)
SELECT count(*), sum(reward_mean * scored_count) / sum(scored_count),
       avg((reward_std < %(rounding)s)::int)::float8, avg((solved_count = scored_count)::int)::float8,
       avg((solved_count = 0)::int)::float8, avg((state = 'filtered')::int)::float8
FROM newest
