-- The newest scored training groups of an environment of a run, in at most `columns` spans of policy versions: how many
-- groups had which solve rate, and how many were solved by all of their rollouts or by none. Bounded: that many groups of
-- the run are read.
-- Locks: nothing.
-- Index: group_recent (partial), read from its end.
WITH newest AS MATERIALIZED (
    SELECT environment_id, purpose, min_policy_version AS version, scored_count, solved_count, reward_mean
    FROM rollouts_scoredgroup
    WHERE run_id = %(run_id)s AND settled_at IS NOT NULL
    ORDER BY settled_at DESC
    LIMIT %(groups)s
), own AS (
    SELECT *, min(version) OVER () AS first_version, max(version) OVER () AS last_version
    FROM newest
    WHERE environment_id = %(environment_id)s AND purpose = 'train' AND scored_count > 0
), placed AS (
    SELECT *, (version - first_version) / (1 + (last_version - first_version) / %(columns)s) AS span,
           CASE solved_count WHEN 0 THEN 0 WHEN scored_count THEN %(rates)s + 1
                ELSE 1 + solved_count * %(rates)s / scored_count END AS rate
    FROM own
), counted AS (
    SELECT span, rate, count(*) AS groups, sum(scored_count) AS scored, sum(solved_count) AS solved,
           sum(reward_mean * scored_count) AS reward, min(version) AS first_version, max(version) AS last_version
    FROM placed
    GROUP BY span, rate
)
SELECT min(first_version), max(last_version), array_agg(rate), array_agg(groups), sum(groups)::bigint, sum(solved) / sum(scored),
       sum(reward) / sum(scored)
FROM counted
GROUP BY span
ORDER BY span
