-- Which members of a version are of problems that evaluations of the project played in an environment of the same name,
-- by the key of the problem or by what stands before the first answer, system messages aside. A teacher's play of
-- training problems is no evaluation of them.
-- Locks: nothing.
-- Index: evaluation of a run, group_problem_once_per_evaluation, rollout_index_once_per_group.
WITH evaluated AS (
    SELECT DISTINCT ON (environment.name, scored.problem_key)
           environment.name AS environment, scored.problem_key, rollout.messages
    FROM rollouts_run AS run
    JOIN rollouts_evaluation AS evaluation ON evaluation.run_id = run.id
    JOIN rollouts_scoredgroup AS scored ON scored.evaluation_id = evaluation.id
    JOIN rollouts_runenvironment AS environment ON environment.id = scored.environment_id
    JOIN rollouts_rollout AS rollout ON rollout.group_id = scored.id AND rollout.index = 0
    WHERE run.project_id = %(project_id)s
      AND NOT (run.kind = 'eval' AND coalesce(run.config #>> '{evaluation,split}', '') = 'train')
    ORDER BY environment.name, scored.problem_key, scored.id
),
told AS (
    SELECT member.position, environment.name AS environment, scored.problem_key,
           coalesce(
               rollout.messages, member.row -> 'messages',
               CASE jsonb_typeof(member.row -> 'prompt')
                   WHEN 'string' THEN jsonb_build_array(
                       jsonb_build_object('role', 'user', 'content', member.row -> 'prompt')
                   )
                   WHEN 'array' THEN member.row -> 'prompt'
               END,
               member.row -> 'chosen'
           ) AS messages
    FROM rollouts_datasetmember AS member
    LEFT JOIN rollouts_scoredgroup AS scored ON scored.id = member.group_id
    LEFT JOIN rollouts_runenvironment AS environment ON environment.id = scored.environment_id
    LEFT JOIN rollouts_rollout AS rollout ON rollout.id = member.rollout_id
    WHERE member.version_id = %(version_id)s
    UNION ALL
    SELECT NULL, environment, problem_key, messages FROM evaluated
),
asked AS (
    SELECT told.position, told.environment, told.problem_key, sha256(convert_to(prompt.text, 'UTF8')) AS prompt
    FROM told
    LEFT JOIN LATERAL (
        SELECT string_agg(message ->> 'content', E'\n' ORDER BY at) AS text
        FROM jsonb_array_elements(
            CASE jsonb_typeof(told.messages) WHEN 'array' THEN told.messages ELSE '[]' END
        ) WITH ORDINALITY AS said (message, at)
        WHERE message ->> 'role' <> 'system'
          AND at < (
              SELECT coalesce(min(number), 1000000000)
              FROM jsonb_array_elements(told.messages) WITH ORDINALITY AS answer (message, number)
              WHERE answer.message ->> 'role' = 'assistant'
          )
    ) AS prompt ON true
),
keys AS (
    SELECT DISTINCT environment, problem_key FROM asked WHERE position IS NULL AND problem_key <> ''
),
prompts AS (
    SELECT DISTINCT prompt FROM asked WHERE position IS NULL AND prompt IS NOT NULL
),
found AS (
    SELECT asked.position, keys.problem_key IS NOT NULL AS by_key, prompts.prompt IS NOT NULL AS by_prompt
    FROM asked
    LEFT JOIN keys ON keys.environment = asked.environment AND keys.problem_key = asked.problem_key
    LEFT JOIN prompts ON prompts.prompt = asked.prompt
    WHERE asked.position IS NOT NULL
)
SELECT (SELECT count(*) FROM evaluated) AS problems, count(*) FILTER (WHERE by_key) AS by_key,
       count(*) FILTER (WHERE by_prompt) AS by_prompt, count(*) FILTER (WHERE by_key OR by_prompt) AS members,
       coalesce((array_agg(position ORDER BY position) FILTER (WHERE by_key OR by_prompt))[1:%(shown)s], '{}') AS positions
FROM found
