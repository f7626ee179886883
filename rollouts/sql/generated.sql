-- The training groups that were scored since the newest batch of a run was formed, whether they will be trained or not:
-- how many, the mean reward of their rollouts, and the shares of groups that teach nothing, by why. Bounded: the newest
-- so many of them. The rewards of a match are compared within each seat, as its advantages are.
-- Locks: nothing.
-- Index: group_recent (partial), read from its end; batch_once_per_step; rollout_index_once_per_group.
WITH newest AS (
    SELECT id, state, scored_count, solved_count, reward_mean, reward_std, given_rewards
    FROM rollouts_scoredgroup
    WHERE run_id = %(run_id)s AND settled_at IS NOT NULL AND purpose = 'train' AND scored_count > 0
        AND settled_at > coalesce(
            (SELECT formed_at FROM rollouts_batch WHERE run_id = %(run_id)s ORDER BY step DESC LIMIT 1), '-infinity'
        )
    ORDER BY settled_at DESC
    LIMIT %(groups)s
)
SELECT count(*), sum(reward_mean * scored_count) / sum(scored_count),
       avg((
           reward_std < %(rounding)s
           -- Where nobody has a seat, which the first rollout tells, the others are not read.
           OR (SELECT seat <> '' FROM rollouts_rollout WHERE group_id = newest.id AND index = 0)
           AND (
               SELECT bool_and(low = high)
               FROM (
                   SELECT min(reward) AS low, max(reward) AS high
                   FROM (
                       SELECT seat, coalesce(newest.given_rewards[index + 1], reward) AS reward
                       FROM rollouts_rollout WHERE group_id = newest.id
                   ) AS counting
                   GROUP BY seat
               ) AS of_seats
           )
       )::int)::float8,
       avg((solved_count = scored_count)::int)::float8,
       avg((solved_count = 0)::int)::float8, avg((state = 'filtered')::int)::float8
FROM newest
