-- What members of a version ask, in their order: of a rollout as in `evaluated_prompts`; of a line of a file its messages,
-- its prompt (`is_prompt`: all of it is), or those that the better one of a pair begins with.
-- Locks: nothing. Everything read here is insert-only.
-- Index: dataset_member_position_once, primary keys.
SELECT member.position, environment.name, scored.problem_key, member.group_id, rollout.index,
       coalesce(jsonb_array_length(rollout.earlier_branches), 0) + 1 AS branches,
       coalesce(
           rollout.earlier_branches -> 0, rollout.messages, given.messages,
           CASE jsonb_typeof(given.prompt)
               WHEN 'string' THEN jsonb_build_array(jsonb_build_object('role', 'user', 'content', given.prompt))
               ELSE given.prompt
           END,
           given.chosen
       )::text AS messages,
       rollout.id IS NULL AND given.messages IS NULL AND given.prompt IS NOT NULL AS is_prompt
FROM rollouts_datasetmember AS member
CROSS JOIN LATERAL (
    SELECT nullif(asked -> 'messages', 'null') AS messages, nullif(asked -> 'prompt', 'null') AS prompt,
           asked -> 'chosen' AS chosen
    FROM (SELECT member.row::jsonb AS asked) AS parsed
) AS given
LEFT JOIN rollouts_scoredgroup AS scored ON scored.id = member.group_id
LEFT JOIN rollouts_runenvironment AS environment ON environment.id = scored.environment_id
LEFT JOIN rollouts_rollout AS rollout ON rollout.id = member.rollout_id
WHERE member.version_id = %(version_id)s
ORDER BY member.position
