-- How many members of a version have a reward in each of some equal parts between the least and the highest.
-- Locks: nothing.
-- Index: dataset_member_position_once.
WITH rewarded AS (
    SELECT CASE
               WHEN member.row IS NULL THEN coalesce(scored.given_rewards[rollout.index + 1], rollout.reward)
               WHEN json_typeof(member.row -> 'reward') = 'number'
                   THEN CASE WHEN abs((member.row ->> 'reward')::numeric) < 1e38 THEN (member.row ->> 'reward')::float8 END
           END AS reward
    FROM rollouts_datasetmember AS member
    LEFT JOIN rollouts_scoredgroup AS scored ON scored.id = member.group_id
    LEFT JOIN rollouts_rollout AS rollout ON rollout.id = member.rollout_id
    WHERE member.version_id = %(version_id)s
)
SELECT least(width_bucket(reward, %(low)s::float8, %(high)s::float8, %(parts)s), %(parts)s) - 1 AS part, count(*)
FROM rewarded
WHERE reward IS NOT NULL
GROUP BY part
