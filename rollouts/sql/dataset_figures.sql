-- What a version of a dataset has, in numbers: of a pair the tokens of both, and the reward of the better one.
-- Locks: nothing.
-- Index: dataset_member_position_once.
WITH told AS (
    SELECT member.split, member.is_wanted, member.correction_id, member.labels, member.group_id,
           coalesce(environment.name, member.row ->> 'environment', '') || '/'
               || coalesce(nullif(scored.problem_key, ''), member.row ->> 'problem_key') AS problem,
           rollout.token_count + coalesce(other.token_count, 0) AS tokens,
           rollout.trained_token_count + coalesce(other.trained_token_count, 0) AS trained_tokens,
           CASE
               WHEN member.row IS NULL THEN coalesce(scored.given_rewards[rollout.index + 1], rollout.reward)
               -- A number that no column holds is no reward.
               WHEN json_typeof(member.row -> 'reward') = 'number'
                   THEN CASE WHEN abs((member.row ->> 'reward')::numeric) < 1e38 THEN (member.row ->> 'reward')::float8 END
           END AS reward
    FROM rollouts_datasetmember AS member
    LEFT JOIN rollouts_scoredgroup AS scored ON scored.id = member.group_id
    LEFT JOIN rollouts_runenvironment AS environment ON environment.id = scored.environment_id
    LEFT JOIN rollouts_rollout AS rollout ON rollout.id = member.rollout_id
    LEFT JOIN rollouts_rollout AS other ON other.id = member.other_id
    WHERE member.version_id = %(version_id)s
)
SELECT count(*) FILTER (WHERE split = 'train') AS train, count(*) FILTER (WHERE split = 'eval') AS validation,
       count(*) FILTER (WHERE NOT is_wanted) AS unwanted, count(correction_id) AS corrected, count(labels) AS labelled,
       count(DISTINCT group_id) AS groups, count(DISTINCT problem) AS problems,
       coalesce(sum(tokens), 0)::bigint AS tokens, coalesce(sum(trained_tokens), 0)::bigint AS trained_tokens,
       coalesce(max(tokens), 0) AS most_tokens, count(reward) AS rewarded, avg(reward) AS reward_mean,
       stddev_pop(reward) AS reward_std, min(reward) AS reward_min, max(reward) AS reward_max
FROM told
