-- The solve rates of the problems of an environment of a run, a row for each problem and policy version, newest version
-- last; of those problems among the newest groups that were played the most often.
-- Locks: nothing.
-- Index: group_recent (partial), read from its end.
WITH newest AS MATERIALIZED (
    SELECT environment_id, purpose, problem_index, problem_key, min_policy_version AS version, scored_count, solved_count,
           reward_mean
    FROM rollouts_scoredgroup
    WHERE run_id = %(run_id)s AND settled_at IS NOT NULL
    ORDER BY settled_at DESC
    LIMIT %(groups)s
), own AS (
    SELECT * FROM newest
    WHERE environment_id = %(environment_id)s AND purpose = 'train' AND scored_count > 0
        AND (%(problem_key)s = '' OR problem_key = %(problem_key)s)
), shown AS (
    SELECT problem_key FROM own GROUP BY problem_key ORDER BY count(*) DESC, problem_key LIMIT %(problems)s
)
SELECT problem_key, version, min(problem_index), sum(scored_count)::bigint, sum(solved_count)::bigint,
       sum(reward_mean * scored_count) / sum(scored_count)
FROM own JOIN shown USING (problem_key)
GROUP BY problem_key, version
ORDER BY problem_key, version
